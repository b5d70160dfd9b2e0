"""Batches from DataLoaders, other iterables and functions: what they mean, and where a resumed training goes on."""
import collections
import random
import unittest

import ebb
import numpy as np
from gi.overrides._ebb_loader import BatchReader, FunctionBatches, LoaderBatches, make_batches
from gi.overrides._ebb_trainer_names import ANSWERS, TAKEN, translate
from support import TestCase, main

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset
except ImportError:
    torch = None

# All fields of TrainingArguments in transformers 5.24.
_FIELDS = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval
fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel
liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_strategy
logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level
log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id
eval_strategy eval_steps eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start
eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
save_only_model save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token
hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model
greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu
accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
remove_unused_columns label_names train_sampling_strategy length_column_name ddp_find_unused_parameters
ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug
skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank""".split()


class Generator:
    """A generator with a state as PyTorch's has: bytes in a tensor that can be written."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def get_state(self):
        return np.array(self.random.getstate()[1], np.int64)

    def set_state(self, state):
        self.random.setstate((3, tuple(int(value) for value in state), None))


class Sampler:
    """Shuffles, by numbers of a generator."""

    def __init__(self, n_rows, generator):
        self.n_rows, self.generator = n_rows, generator

    def __iter__(self):
        rows = list(range(self.n_rows))
        self.generator.random.shuffle(rows)
        yield from rows


class BatchSampler:
    def __init__(self, sampler, batch_size):
        self.sampler, self.batch_size = sampler, batch_size

    def __iter__(self):
        rows = list(self.sampler)
        yield from (rows[i:i + self.batch_size] for i in range(0, len(rows), self.batch_size))


class Loader:
    """The parts of a DataLoader that decide its order."""

    def __init__(self, dataset, batch_size, generator):
        self.dataset, self.generator = dataset, generator
        self.sampler = Sampler(len(dataset), generator)
        self.batch_sampler = BatchSampler(self.sampler, batch_size)
        self.is_made = True

    def __setattr__(self, name, value):
        if hasattr(self, "is_made"):
            raise ValueError(f"{name} can't be set")
        super().__setattr__(name, value)

    def __len__(self):
        return -(-len(self.dataset) // self.batch_sampler.batch_size)

    def __iter__(self):
        self.generator.random.random()  # the seed of workers
        return ([self.dataset[i] for i in rows] for rows in self.batch_sampler)


class Rows:
    """A dataset that counts the rows that are loaded."""

    def __init__(self, n_rows):
        self.n_rows, self.n_loaded = n_rows, 0

    def __len__(self):
        return self.n_rows

    def __getitem__(self, i):
        self.n_loaded += 1
        return i


def take_all(source, first=0, n=None):
    found = []
    while n is None or len(found) < n:
        batch = source.take(first + len(found))
        if isinstance(batch, dict) and not batch:
            break
        found.append(batch)
    return found


def through_state(source):
    """What a state gives back of the places of a source."""
    return [[epoch, first, states] for epoch, first, states in source.get_values()]


class Places(TestCase):
    def make(self, n_epochs=3):
        return LoaderBatches("data", Loader(Rows(10), 3, Generator(5)), n_epochs, "resume")

    def test_epochs_follow_each_other(self):
        batches = take_all(self.make())
        self.assertEqual([len(batch) for batch in batches], [3, 3, 3, 1] * 3)
        epochs = [sum(batches[i:i + 4], []) for i in (0, 4, 8)]
        self.assertEqual([sorted(epoch) for epoch in epochs], [list(range(10))] * 3)
        self.assertEqual(len({tuple(epoch) for epoch in epochs}), 3)
        self.assertEqual(self.make().n_batches, 4)

    def test_a_resumed_training_gets_the_rows_that_follow(self):
        whole = take_all(self.make())
        for n in range(1, 12):
            before = self.make()
            take_all(before, n=n)
            after = self.make()
            after.load_values(through_state(before))
            self.assertEqual(take_all(after, first=n), whole[n:], n)

    def test_rows_of_batches_left_out_are_not_loaded(self):
        before, after = self.make(1), self.make(1)
        take_all(before, n=3)
        after.load_values(through_state(before))
        rest = take_all(after, first=3)
        self.assertEqual((len(rest), after._loader.dataset.n_loaded), (1, 1))
        self.assertIs(type(after._loader.batch_sampler), BatchSampler)

    def test_starts_that_no_state_needs_are_dropped(self):
        source = self.make(None)
        take_all(source, n=41)
        source.forget(39)
        self.assertEqual([start[:2] for start in source.starts], [(9, 36), (10, 40)])

    def test_a_list_begins_where_it_is(self):
        source = LoaderBatches("data", [1, 2, 3], 2, "resume")
        take_all(source, n=4)
        other = LoaderBatches("data", [1, 2, 3], 2, "resume")
        other.load_values(through_state(source))
        self.assertEqual(take_all(other, first=4), [2, 3])

    def test_an_iterable_is_read_again_and_says_so(self):
        class Words:
            def __iter__(self):
                return iter("abcd")

        source, notes = LoaderBatches("data", Words(), 2, "resume"), []
        source.note = notes.append
        source.load_values([[0, 0, []]])
        self.assertEqual(take_all(source, first=2), list("cdabcd"))
        self.assertEqual(notes, ["data: 2 batches are read again and dropped, since a Words has no order of its own"])

    def test_epochs_reach_samplers(self):
        class Shuffled(list):
            def set_epoch(self, epoch):
                self[:] = [epoch * 10 + i for i in range(2)]

        loader = Loader(Rows(100), 1, Generator(1))
        loader.batch_sampler.__dict__["sampler"] = Shuffled()
        self.assertEqual(take_all(LoaderBatches("data", loader, 3)), [[0], [1], [10], [11], [20], [21]])

    def test_what_nobody_can_repeat_is_refused(self):
        with self.assertRaisesRegex(ValueError, "data is a generator, which gives its batches once, and resume is set"):
            LoaderBatches("data", (i for i in range(3)), 1, "resume")
        loader = Loader(Rows(10), 3, Generator(5))
        loader.sampler.generator = None
        with self.assertRaisesRegex(ValueError, "data shuffles by random numbers that nobody can repeat, and mesh is "
                                    r"set: give the DataLoader, and its Sampler, generator=torch.Generator\(\)"):
            LoaderBatches("data", loader, 1, "mesh")
        self.assertEqual(take_all(LoaderBatches("data", (i for i in range(1, 3)), 1)), [1, 2])

    def test_places_of_other_data_are_refused(self):
        with self.assertRaisesRegex(ValueError, "resume: the state has no place in data"):
            LoaderBatches("data", [1, 2], 1, "resume").take(1)
        with self.assertRaisesRegex(ValueError, "the state has 0 generators, and data has 1"):
            self.make().load_values([[0, 0, []]])
        with self.assertRaisesRegex(ValueError, "of data has 3 bytes, and here 625"):
            self.make().load_values([[0, 0, [ebb.zeros(3)]]])

    def test_data_without_batches_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "data gave no batch in epoch 1"):
            LoaderBatches("data", []).take(0)
        with self.assertRaisesRegex(ValueError, "data gave no batch in epoch 2: .* gone through again"):
            take_all(LoaderBatches("data", iter([1]), 2))

    def test_functions_give_batches_by_number(self):
        source = make_batches("data", lambda n: n + 1 if n < 2 else {}, 1, "resume")
        self.assertIsInstance(source, FunctionBatches)
        self.assertEqual(take_all(source), [1, 2])
        with self.assertRaisesRegex(TypeError, r"data\(7\) returned None: it must be a batch, or \{\}"):
            make_batches("data", lambda n: None, 1, None).take(7)

    def test_what_gives_no_batches_is_refused(self):
        for value in ("text.txt", {"tokens": 1}, ebb.zeros(2, 2)):
            with self.assertRaisesRegex(TypeError, "data is .*: it must give batches, one after the other"):
                make_batches("data", value, 1, None)
        with self.assertRaisesRegex(TypeError, "data is 5: it must be an ebb.TextDataset or another dataset"):
            make_batches("data", 5, 1, None)


class Meaning(TestCase):
    def read(self, batch, has_loss=False, is_masked=False):
        return BatchReader(has_loss, is_masked).read("data", batch)

    def assert_batch(self, batch, **expected):
        self.assertEqual({name: value.tolist() for name, value in batch.items()}, expected)

    def test_tokens_and_targets_stay(self):
        tokens, targets = np.array([[1, 2]]), np.array([[2, 3]])
        for batch in ((tokens, targets), [tokens, targets], {"tokens": tokens, "targets": targets},
                      {"tokens": [[1, 2]], "targets": [[2, 3]]},
                      collections.UserDict(tokens=ebb.tensor([[1, 2]]), targets=ebb.tensor([[2, 3]]))):
            self.assert_batch(self.read(batch), tokens=[[1, 2]], targets=[[2, 3]])
        self.assertEqual(self.read({"tokens": tokens, "targets": targets, "weight": 2})["weight"], 2)

    def test_labels_are_shifted_by_one(self):
        batch = {"input_ids": np.array([[5, 6, 7]]), "labels": np.array([[-100, 6, 7]])}
        self.assert_batch(self.read(batch), tokens=[[5, 6]], targets=[[6, 7]])
        self.assert_batch(self.read({**batch, "attention_mask": np.array([[1, 1, 0]])}), tokens=[[5, 6]],
                          targets=[[6, 7]])
        self.assert_batch(self.read(batch, is_masked=True), tokens=[[5, 6, 7]], targets=[[-100, 6, 7]])

    def test_tokens_alone_predict_the_next_ones(self):
        rows = np.array([[5, 6, 7, 8], [1, 2, 0, 0]], np.int32)
        for batch in (rows, {"input_ids": rows}):
            self.assert_batch(self.read(batch), tokens=[[5, 6, 7], [1, 2, 0]], targets=[[6, 7, 8], [2, 0, 0]])
        mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
        self.assert_batch(self.read({"input_ids": rows, "attention_mask": mask}),
                          tokens=[[5, 6, 7], [1, 2, 0]], targets=[[6, 7, 8], [2, -100, -100]])

    def test_what_means_nothing_is_refused_by_name(self):
        rows = np.array([[5, 6, 7]])
        for batch, message in (
                ({"input_ids": rows, "attention_mask": np.array([[0, 1, 1]])},
                 "data: a batch has zeros in attention_mask before a token: pad on the right"),
                ({"input_ids": rows, "token_type_ids": rows}, "data gave a batch with 'token_type_ids', which means"),
                ({"tokens": rows, "targets": rows, "text": ["a"]}, "data gave a batch with 'text', which means"),
                ({"input_ids": rows.astype(np.float32)}, r"data: input_ids are ebb.float32 \[1, 3\]: they must be int"),
                ({3: rows}, "data gave a batch with the key 3: it must be a str"),
                ((rows, rows, rows), r"data gave a batch of 3 values: it must be \(tokens, targets\)"),
                ({"tokens": "a", "targets": rows}, "data: tokens of a batch is 'a': it must be an array")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                self.read(batch)
        for batch, what in (({"input_ids": rows}, "no labels"),
                            ({"input_ids": rows, "labels": rows, "attention_mask": np.array([[1, 1, 0]])}, "zeros in")):
            with self.assertRaisesRegex(ValueError, f"data: a batch has {what}.*: a masked language model takes"):
                self.read(batch, is_masked=True)

    def test_a_loss_function_gets_what_the_loader_gave(self):
        point = collections.namedtuple("point", "x y z")
        array = np.ones((2, 3), np.float32)
        for batch in ({"x": array, "more": [array, {"y": array}], "name": "a"}, (array, array), [array, array, array],
                      point(array, array, array), array, (array, )):
            reader = BatchReader(True)
            values = reader.read("data", batch)
            self.assertIs(type(values), dict)
            restored = reader.restore(values)
            self.assertIs(type(restored), ebb.Tensor if batch is array else type(batch))
            if isinstance(batch, dict):
                self.assertEqual((restored["x"].tolist(), restored["more"][1]["y"].shape, restored["name"]),
                                 ([[1.0] * 3] * 2, (2, 3), "a"))
            elif batch is not array:
                self.assertEqual([value.shape for value in restored], [(2, 3)] * len(batch))
        self.assertIn("targets", BatchReader(True).read("data", (array, np.array([0, 1]))))

    def test_a_loss_function_gets_one_form(self):
        reader = BatchReader(True)
        reader.read("data", (np.ones(2), np.ones(2)))
        with self.assertRaisesRegex(TypeError, "data gave a dict after a tuple: all batches must have one form"):
            reader.read("data", {"x": np.ones(2)})


class Names(TestCase):
    def test_each_of_hugging_faces_names_is_taken_or_answered(self):
        own = {"learning_rate", "weight_decay", "seed"}
        self.assertEqual(len(_FIELDS), 114)
        self.assertEqual({name for name in _FIELDS if name not in own | TAKEN.keys() | ANSWERS.keys()}, set())
        self.assertEqual((own | TAKEN.keys()) & ANSWERS.keys(), set())
        for name in ANSWERS:
            with self.assertRaisesRegex(TypeError, rf"^Trainer\(\) has no option '{name}': (write|call|leave|give|seed|"
                                        "make) "):
                translate("Trainer", {name: 1})

    def test_names_that_mean_the_same_are_taken(self):
        self.assertEqual(translate("Trainer", {
            "train_dataset": 1, "eval_dataset": 2, "max_steps": 3, "gradient_accumulation_steps": 4, "max_grad_norm": 5,
            "eval_steps": 6, "save_steps": 7, "lr_scheduler_type": "cosine", "warmup_steps": 8, "bf16": True,
            "learning_rate": 9, "clip": None}), {
                "data": 1, "evaluate": 2, "steps": 3, "accumulate": 4, "clip": 5, "evaluate_every": 6, "save_every": 7,
                "schedule": "cosine", "warmup": 8, "dtype": "bf16", "learning_rate": 9})
        self.assertEqual(translate("Trainer", {"max_steps": -1, "num_train_epochs": 2, "bf16": False}), {"epochs": 2})
        with self.assertRaisesRegex(TypeError, r"Trainer\(\) got clip and max_grad_norm, which mean the same"):
            translate("Trainer", {"clip": 1.0, "max_grad_norm": 1.0})
        with self.assertRaisesRegex(TypeError, "bf16 is 1: must be True or False"):
            translate("Trainer", {"bf16": 1})


if torch is not None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(12))


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Torch(TestCase):
    def make(self, n_workers, persistent=False):
        loader = DataLoader(list(range(23)), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3),
                            num_workers=n_workers, persistent_workers=persistent)
        return LoaderBatches("data", loader, 3, "resume")

    def test_a_resumed_loader_gives_equal_rows(self):
        for n_workers in (0, 2):
            whole = [batch.tolist() for batch in take_all(self.make(n_workers))]
            for n in (1, 6, 8, 13):
                before, after = self.make(n_workers), self.make(n_workers)
                take_all(before, n=n)
                after.load_values(through_state(before))
                self.assertEqual([batch.tolist() for batch in take_all(after, first=n)], whole[n:], (n_workers, n))

    def test_what_nobody_can_repeat_is_refused(self):
        with self.assertRaisesRegex(ValueError, "give the DataLoader, and its RandomSampler, generator="):
            LoaderBatches("data", DataLoader([1, 2], shuffle=True), 1, "resume")
        with self.assertRaisesRegex(ValueError, "data has persistent workers, .* leave persistent_workers out"):
            self.make(2, True)
        LoaderBatches("data", DataLoader([1, 2]), 1, "resume")

    def test_a_stream_is_read_again(self):
        source, notes = LoaderBatches("data", DataLoader(Stream(), batch_size=5), 2, "resume"), []
        source.note = notes.append
        source.load_values([[0, 0, []]])
        self.assertEqual([batch.tolist() for batch in take_all(source, first=2)][:2], [[10, 11], [0, 1, 2, 3, 4]])
        self.assertEqual(notes,
                         ["data: 2 batches are read again and dropped, since a DataLoader has no order of its own"])


if __name__ == "__main__":
    main()
