"""ebb.Trainer: steps, resuming, Ctrl-C, functions of one's own, what it prints, and what it leaves behind."""
import filecmp
import gc
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import weakref

import ebb
import numpy as np
from gi.module import get_introspection_module
from gi.repository import Gio, GLib
from loaders import Generator, Loader, Rows
from support import TestCase, main, tensor_bytes

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError:
    torch = None


_MODEL = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "fixtures", "chat-model")
_finetune = get_introspection_module("Ebb").finetune


def make_model(dropout=0.0):
    ebb.manual_seed(1)
    return ebb.Gpt(ebb.GptConfig("tiny", vocab=32, context=16, width=16, heads=2, layers=2, dropout=dropout))


def make_batches(n=5, rows=4):
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, 32, (rows, 17)) for _ in range(n)]


def weights(model):
    return np.concatenate([parameter.detach().cpu().numpy().reshape(-1) for parameter in model.parameters()])


class Net(ebb.Module):
    """A model of one's own, with a loss."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = ebb.Embedding(32, 8), ebb.Linear(8, 32)

    def forward(self, tokens):
        return self.head(self.rows(tokens))

    def loss(self, tokens, targets):
        return ebb.cross_entropy(self(tokens), targets)



class Endless:
    """Batches without a length."""

    def __init__(self, n):
        self.batches = make_batches(n)

    def __iter__(self):
        return iter(self.batches)


class Shuffled:
    """Batches of 4 rows in an order by a generator."""

    sampler = batch_sampler = None

    def __init__(self, rows, generator):
        self.dataset, self.generator = rows, generator

    def __len__(self):
        return len(self.dataset) // 4

    def __iter__(self):
        order = list(range(len(self.dataset)))
        self.generator.random.shuffle(order)
        return (self.dataset[order[4 * i:4 * i + 4]] for i in range(len(self)))


class AgainTest(TestCase):
    """What holds when a training goes on, ends early, or is measured."""

    def test_goes_on_after_the_end_of_the_data(self):
        for data, options in ((make_batches(5), {"accumulate": 2, "epochs": 1}), (Endless(3), {})):
            trainer = ebb.Trainer(make_model(), data, progress=False, **options)
            trainer.run()
            self.assertEqual(trainer.step, 3)
            trainer.run(steps=6)
            self.assertEqual(trainer.step, 6)

    def test_goes_on_with_its_log(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer = ebb.Trainer(make_model(), make_batches(), steps=2, log=folder, progress=False)
            trainer.run()
            trainer.run(steps=4)
            with open(os.path.join(folder, "steps.jsonl"), encoding="utf-8") as file:
                self.assertEqual([json.loads(line)["step"] for line in file], [1, 2, 3, 4])

    def test_last_step_is_measured(self):
        for data, options in ((Endless(3), {}),
                              (make_batches(), {"steps": 10, "on_step": lambda step: step.number < 3})):
            measured = []
            trainer = ebb.Trainer(make_model(), data, evaluate=make_batches(2), on_evaluate=measured.append,
                                  progress=False, **options)
            trainer.run()
            self.assertEqual([one.step for one in measured], [3])

    def test_cancelled_plan_is_forgotten(self):
        trainer = ebb.Trainer(make_model(), make_batches(), steps=2, memory="2GiB", progress=False)
        cancellable = Gio.Cancellable()
        handler = trainer.connect("phase", lambda *_: cancellable.cancel())
        with self.assertRaisesRegex(GLib.Error, "cancelled"):
            get_introspection_module("Ebb").Trainer.run(trainer, cancellable)
        trainer.disconnect(handler)
        trainer.run()
        self.assertEqual(trainer.step, 2)

    def test_measuring_its_own_data_keeps_the_place(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "text.txt")
            with open(path, "w", encoding="utf-8") as file:
                file.write("abcdefgh" * 100)
            ebb.manual_seed(1)
            model = ebb.Gpt(ebb.GptConfig("tiny", vocab=256, context=16, width=16, heads=2, layers=1))
            data = ebb.TextDataset([path], ebb.ByteTokenizer())
            trainer = ebb.Trainer(model, data, steps=2, batch_size=2, progress=False)
            trainer.run_step()
            trainer.evaluate(data)
            self.assertEqual(data.position, 2)

    def test_metrics_stay_within_a_budget(self):
        def loss(model, batch):
            value = ebb.cross_entropy(model(batch[:, :-1].contiguous()).reshape(-1, 32), batch[:, 1:].reshape(-1))
            return value, {"three": 3}

        steps = []
        ebb.Trainer(make_model(), make_batches(), steps=4, loss=loss, memory="2GiB", on_step=steps.append,
                    progress=False).run()
        self.assertEqual([step.metrics["three"] for step in steps], [3.0] * 4)

    def test_concessions_stay_when_it_goes_on(self):
        budget = ebb.MemoryBudget(int(1.1 * 2**20), scope="device", allow="micro-batches")
        trainer = ebb.Trainer(make_model(), make_batches(10, 64), steps=2, memory=budget, progress=False)
        self.assertEqual(trainer.run()["taken"], ["micro-batches"])
        self.assertEqual(trainer.run(steps=4)["taken"], ["micro-batches"])

    def test_dry_runs_draw_no_order(self):
        losses = []
        for is_within in (False, True):
            loader = Shuffled(make_batches(1, 12)[0], Generator(1))

            def make(_taken=None, loader=loader):
                return ebb.Trainer(make_model(), loader, steps=3, progress=False)

            trainer = ebb.Trainer.new_within("2GiB", make) if is_within else make()
            trainer.run()
            losses.append(trainer.losses)
        self.assertEqual(*losses)

    def test_buffer_that_is_filled_again(self):
        batches, buffer = make_batches(4), np.zeros((4, 17), np.int64)

        def take(number):
            buffer[:] = batches[number]
            return buffer[:, :-1], buffer[:, 1:]

        plain = [(batch[:, :-1], batch[:, 1:]) for batch in batches]
        trainers = [ebb.Trainer(make_model(), data, accumulate=2, steps=2, progress=False) for data in (plain, take)]
        for trainer in trainers:
            trainer.run()
        self.assertEqual(trainers[0].losses, trainers[1].losses)

    def test_failed_plan_leaves_the_budget_free(self):
        model, other = make_model(), make_model()
        tokens = ebb.tensor(make_batches(1)[0])

        def make_step(model, optimizer):
            def step():
                model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).backward()
                optimizer.step()
                optimizer.zero_grad()
            return step

        budgets = [ebb.MemoryBudget("2GiB") for _ in range(2)]
        trainings = []
        for one in (model, other):
            optimizer = ebb.AdamW(one, 1e-3)
            trainings.append((ebb.TrainingState(one, optimizer), make_step(one, optimizer)))
        budgets[0].plan(*trainings[0])
        with self.assertRaisesRegex(ebb.Error, "another one limits"):
            budgets[1].plan(*trainings[1])
        budgets[0].release()
        budgets[1].plan(*trainings[1])
        budgets[1].release()


class Case(TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-trainer-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def place(self, name):
        return os.path.join(self.folder, name)

    def make(self, data=None, dropout=0.0, **options):
        options = {"steps": 7, "learning_rate": 1e-2, "clip": 1.0, "progress": False, **options}
        return ebb.Trainer(make_model(dropout), make_batches() if data is None else data, **options)

    def assert_weights(self, trainer, other):
        self.assertTrue(np.array_equal(weights(trainer.model), weights(other.model)))


class Training(Case):
    def test_it_is_the_loop_of_ones_own(self):
        trainer = self.make(dropout=0.1, seed=3)
        report = trainer.run()
        model = make_model(0.1)
        optimizer = ebb.AdamW([{"params": [p for p in model.parameters() if p.ndim > 1]},
                               {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0}], lr=1e-2)
        ebb.manual_seed(3)
        losses = []
        for i in range(7):
            rows = ebb.tensor(make_batches()[i % 5])
            loss = model.loss(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
            loss.backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertEqual(trainer.losses, losses)
        self.assertTrue(np.array_equal(weights(trainer.model), weights(model)))
        self.assertEqual((report["last_step"], report["losses"], trainer.step), (7, losses, 7))

    def test_iterating_is_running(self):
        whole, steps = self.make(), []
        whole.run()
        with self.make() as trainer:
            for step in trainer:
                steps.append(step)
        self.assert_weights(trainer, whole)
        self.assertEqual([step.loss for step in steps], whole.losses)
        self.assertEqual(str(steps[-1]), f"step 7: loss {whole.losses[-1]:.4f}, learning rate 0.01")

    def test_it_goes_on(self):
        whole, trainer = self.make(), self.make(steps=4)
        whole.run()
        trainer.run()
        self.assertEqual(trainer.step, 4)
        trainer.run(steps=7)
        self.assert_weights(trainer, whole)

    def test_a_loader_ends_after_its_epochs(self):
        trainer = self.make(steps=None)
        self.assertEqual(trainer.run()["last_step"], 5)
        self.assertEqual(trainer.run(steps=6)["last_step"], 6)
        for options, steps in (({"epochs": 2}, 10), ({"epochs": 2, "accumulate": 3}, 4), ({"epochs": 0.5}, 3),
                               ({"num_train_epochs": 1}, 5)):
            self.assertEqual(self.make(steps=None, **options).run()["last_step"], steps, options)
        self.assertEqual(self.make((row for row in make_batches()), steps=None).run()["last_step"], 5)
        self.assertEqual(self.make(lambda n: make_batches()[n] if n < 4 else {}, steps=None).run()["last_step"], 4)

    def test_three_ways_of_a_batch_train_alike(self):
        rows = make_batches(1)[0]
        masked = {"input_ids": rows, "attention_mask": (np.arange(17) < [[17], [5], [12], [2]]).astype(np.int64)}
        parts = [{name: value[i:i + 1] for name, value in masked.items()} for i in range(4)]
        whole, added, micro = (self.make(data, steps=3, clip=0.0, accumulate=accumulate, micro_batch_size=size)
                               for data, accumulate, size in (([masked], 1, 0), (parts, 4, 0), ([masked], 1, 1)))
        for trainer in (whole, added, micro):
            trainer.run()
        for trainer in (added, micro):
            np.testing.assert_allclose(trainer.losses, whole.losses, rtol=1e-5)
            np.testing.assert_allclose(weights(trainer.model), weights(whole.model), rtol=0, atol=2e-4)

    def test_schedules_warm_up(self):
        rates = {}
        for name, options in {"cosine": {"schedule": "cosine", "warmup": 0.25},
                              "constant": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
                              "own": {"schedule": ebb.CosineSchedule(2, 8, 0.0)}}.items():
            rates[name] = []
            self.make(steps=8, on_step=lambda step: rates[name].append(step.learning_rate), **options).run()
        schedule = ebb.CosineSchedule(2, 8, 0.0)
        self.assertEqual(rates["cosine"], [1e-2 * schedule.get_factor(step) for step in range(8)])
        self.assertEqual(rates["own"], rates["cosine"])
        self.assertEqual(rates["constant"][2:], [1e-2] * 6)
        self.assertLess(rates["constant"][0], 1e-2)

    def test_an_optimizer_of_another_model_is_refused(self):
        model, other = make_model(), make_model()
        message = "optimizer: it has none of the model's trainable parameters, as .*weight: make it of this model"
        with self.assertRaisesRegex(ebb.Error, message):
            ebb.Trainer(model, make_batches(), steps=1, optimizer=ebb.AdamW(other, 1e-3))
        early = ebb.AdamW(model, 1e-3)
        ebb.lora(model, rank=2)
        with self.assertRaisesRegex(ebb.Error, message):
            ebb.Trainer(model, make_batches(), steps=1, optimizer=early)
        ebb.Trainer(model, make_batches(), steps=1, optimizer=ebb.AdamW(model, 1e-3), progress=False).run()

    def test_a_model_in_eval_mode_trains_with_dropout(self):
        losses = []
        for is_training in (True, False):
            model = make_model(dropout=0.5).train(is_training)
            trainer = ebb.Trainer(model, make_batches(), steps=2, seed=3, progress=False)
            trainer.run()
            losses.append(trainer.losses)
            self.assertTrue(model.training)
        self.assertEqual(losses[0], losses[1])

    def test_a_schedule_follows_raised_steps(self):
        rates = []
        trainer = self.make(steps=4, schedule="cosine", on_step=lambda step: rates.append(step.learning_rate))
        trainer.run()
        trainer.run(steps=7)
        schedules = [ebb.CosineSchedule(0, n_steps, 0.0) for n_steps in (4, 7)]
        self.assertEqual(rates, [1e-2 * schedules[step >= 4].get_factor(step) for step in range(7)])

    def test_a_fine_tuning_follows_raised_steps(self):
        with open(self.place("data.txt"), "w", encoding="utf-8") as file:
            file.write("The sea is wide and deep. " * 200)
        for options in ({}, {"schedule": "cosine"}):
            rates = []
            trainer = ebb.finetune(_MODEL, self.place("data.txt"), steps=3, batch_size=1, context=16, progress=False,
                                   learning_rate=1e-3, **options)
            trainer.on_step = lambda step, rates=rates: rates.append(step.learning_rate)
            trainer.run(steps=5)
            schedule = ebb.CosineSchedule(0, 5, 0.0)
            self.assertEqual(rates, [1e-3 * schedule.get_factor(step) for step in (3, 4)])

    def test_a_loss_of_ones_own_has_metrics(self):
        model = ebb.Linear(3, 1)

        def loss(model, batch):
            x, y = batch
            error = model(x)[:, 0] - y
            return error.pow(2).mean(), {"largest": abs(error.detach()).max(), "one": 1}

        data = [(np.ones((2, 3), np.float32), np.zeros(2, np.float32))] * 3
        trainer = ebb.Trainer(model, data, loss=loss, progress=False, evaluate=data[:1], log=self.place("log"))
        steps = list(trainer)
        self.assertEqual(list(steps[0].metrics), ["largest", "one"])
        self.assertAlmostEqual(steps[0].metrics["largest"] ** 2, steps[0].loss, 4)
        self.assertRegex(str(steps[0]), r"^step 1: loss \d\.\d{4}, learning rate 0.0003, largest \d\.\d{4}, one 1.0")
        with open(self.place("log/steps.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["step"] for line in file], [1, 2, 3])

    def test_a_module_has_its_own_loss(self):
        trainer = ebb.Trainer(Net(), make_batches(), steps=3, progress=False, micro_batch_size=2)
        self.assertEqual(len(trainer.run()["losses"]), 3)
        with self.assertRaisesRegex(TypeError, "a Linear has no loss of its own: write loss=, .* or give the class"):
            ebb.Trainer(ebb.Linear(2, 2), make_batches())

    def test_an_adapter_is_trained_alone(self):
        model = make_model()
        before = weights(model)
        trainer = ebb.Trainer(model, make_batches(), lora=2, steps=2, progress=False)
        trainer.run()
        trainer.save_model(self.place("adapter"))
        self.assertIn("adapter_config.json", os.listdir(self.place("adapter")))
        ebb.lora_unwrap(model)
        self.assertTrue(np.array_equal(weights(model), before))

    def test_held_out_data_is_measured(self):
        found = []
        trainer = self.make(evaluate=make_batches(2), evaluate_every=3, save_best=self.place("best"),
                            on_evaluate=found.append, on_save=found.append)
        report = trainer.run()
        measured = [one for one in found if not isinstance(one, str)]
        self.assertEqual([one.step for one in measured], [3, 6, 7])
        self.assertEqual([one.loss for one in measured], [one["loss"] for one in report["evaluations"]])
        self.assertEqual([one.step for one in measured if one.is_best][-1], report["best_step"])
        self.assertEqual(found.count(self.place("best")), sum(one.is_best for one in measured))
        self.assertEqual(trainer.evaluate(), measured[-1].loss)
        self.assertTrue(os.path.exists(self.place("best/config.json")))

    def test_datasets_train(self):
        path = self.place("text.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 40)
        model = ebb.Gpt(ebb.GptConfig("tiny", vocab=256, context=16, width=16, heads=2, layers=1))
        text = ebb.TextDataset([path], ebb.ByteTokenizer(), 1)
        held_out = text.hold_out(0.1)
        trainer = ebb.Trainer(model, text, epochs=1, batch_size=4, schedule="cosine", warmup=3, evaluate=held_out,
                              progress=False)
        report = trainer.run()
        self.assertEqual(report["last_step"], -(-text.get_n_rows(16) // 4))
        self.assertEqual(trainer.evaluate(held_out), report["evaluations"][-1]["loss"])


class Resuming(Case):
    def test_a_shuffled_loader_goes_on_in_its_second_epoch(self):
        def make(**options):
            rows = make_batches(1, rows=10)[0]

            class Texts(Rows):
                def __getitem__(self, i):
                    self.n_loaded += 1
                    return rows[i]

            class Stacked(Loader):
                def __iter__(self):
                    return (np.stack(batch) for batch in super().__iter__())

            return self.make(Stacked(Texts(10), 3, Generator(5)), steps=11, resume=self.place("state"), **options)

        reference = self.make_reference(make)
        stopped = make(on_step=lambda step: step.number < 6)
        stopped.run()
        self.assertEqual(stopped.step, 6)
        del stopped
        trainer = make()
        trainer.run()
        self.assert_weights(trainer, reference)
        self.assertEqual(trainer.losses, reference.losses[6:])

    def make_reference(self, make):
        trainer = make()
        trainer.run()
        shutil.rmtree(self.place("state"))
        return trainer

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_a_data_loader_goes_on_in_its_second_epoch(self):
        def make(n_workers, **options):
            loader = DataLoader(torch.from_numpy(make_batches(1, rows=10)[0]), batch_size=3, shuffle=True,
                                num_workers=n_workers, generator=torch.Generator().manual_seed(1))
            return self.make(loader, steps=11, resume=self.place(f"state{n_workers}"), **options)

        for n_workers in (0, 2):
            reference = make(n_workers)
            reference.run()
            shutil.rmtree(self.place(f"state{n_workers}"))
            make(n_workers, on_step=lambda step: step.number < 6).run()
            trainer = make(n_workers)
            trainer.run()
            self.assert_weights(trainer, reference)
            self.assertEqual(trainer.losses, reference.losses[6:])

    def test_each_way_to_stop_resumes_to_the_same_bits(self):
        whole, generator = self.make(dropout=0.1), ebb.Generator.get_default()
        whole.run()

        def interrupt(*_):
            os.kill(os.getpid(), signal.SIGINT)

        def fail(*_):
            raise KeyError("mine")

        def at(number, function):
            return lambda step: function() if getattr(step, "number", step) == number else None

        def from_loss(function):
            calls = []

            def loss(model, batch):
                calls.append(None)
                if len(calls) == 4:
                    function()
                rows = batch
                return model.loss(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

            return loss

        def give(function):
            return lambda number: (function() if number == 4 else None, make_batches()[number % 5])[1]

        ways = {
            "Ctrl-C in a step": (KeyboardInterrupt, {"loss": from_loss(interrupt)}, 4),
            "Ctrl-C after a step": (KeyboardInterrupt, {"on_step": at(4, interrupt)}, 4),
            "Ctrl-C for a batch": (KeyboardInterrupt, {"data": give(interrupt)}, 4),
            "Ctrl-C while it measures": (KeyboardInterrupt, {"on_evaluate": interrupt}, 3),
            "a failing loss": (KeyError, {"loss": from_loss(fail)}, 3),
            "a failing on_step": (KeyError, {"on_step": at(4, fail)}, 4),
            "a failing on_evaluate": (KeyError, {"on_evaluate": fail}, 3),
            "a failing on_save": (KeyError, {"on_save": fail, "save_every": 3}, 3),
            "failing data": (KeyError, {"data": give(fail)}, 4),
            "False": (None, {"on_step": lambda step: step.number < 4}, 4),
        }
        for name, (kind, options, step) in ways.items():
            with self.subTest(name):
                evaluated = {"evaluate": make_batches(1), "evaluate_every": 3} if "on_evaluate" in options else {}
                handler, notes = signal.getsignal(signal.SIGINT), []
                trainer = self.make(dropout=0.1, resume=self.place(name), on_note=notes.append, **evaluated, **options)
                if kind is None:
                    trainer.run()
                else:
                    with self.assertRaises(kind) as caught:
                        trainer.run()
                    self.assertEqual(caught.exception.args, ("mine", ) if kind is KeyError else ())
                self.assertEqual(trainer.step, step)
                self.assertIs(signal.getsignal(signal.SIGINT), handler)
                self.assertEqual(notes, [] if kind is not KeyboardInterrupt else [
                    f"Stopped after step {step}: run() goes on, and so does the program that is started again, from "
                    f"the state in {self.place(name)}"])
                place = generator.get_seed(), generator.get_offset()
                data = {"data": lambda number: make_batches()[number % 5]} if "data" in options else {}
                again = self.make(dropout=0.1, resume=self.place(name), **data)
                again.run()
                self.assertEqual((again.report["first_step"], again.step), (step, 7))
                self.assert_weights(again, whole)
                for option in ("on_step", "on_evaluate", "on_save", "on_note"):
                    setattr(trainer, option, None)
                if "loss" not in options and "data" not in options:
                    generator.set_state(*place)
                    self.assertEqual(trainer.run()["last_step"], 7)
                    self.assert_weights(trainer, whole)

    def test_a_second_ctrl_c_breaks_the_step_off(self):
        def loss(model, batch):
            if len(calls) == 2:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
                calls.append("went on")
            calls.append(None)
            return model.loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())

        calls = []
        trainer = self.make(loss=loss, resume=self.place("state"))
        with self.assertRaises(KeyboardInterrupt):
            trainer.run()
        self.assertEqual((calls, trainer.step), ([None, None], 2))
        self.assertEqual(self.make(resume=self.place("state")).run()["first_step"], 2)

    def test_a_state_that_ctrl_c_can_not_save_is_the_cause(self):
        def stop(step):
            shutil.rmtree(folder)
            with open(folder, "w", encoding="utf-8"):
                pass
            os.kill(os.getpid(), signal.SIGINT)

        folder, notes = self.place("state"), []
        with self.assertRaises(KeyboardInterrupt) as caught:
            self.make(resume=folder, on_step=stop, on_note=notes.append).run()
        self.assertRegex(str(caught.exception.__cause__), "^resume: can't make the folder .*: Not a directory")
        self.assertEqual([note for note in notes if note.startswith("Stopped")], [])

    def test_a_failure_is_raised_once(self):
        failures = [KeyError("first"), IndexError("second")]

        def give(number):
            raise failures[0]

        trainer = self.make(give)
        for kind in (KeyError, IndexError):
            with self.assertRaises(kind):
                trainer.run()
            del failures[0]
        trainer.set_batch_func(lambda *_: ebb.Args.new(ebb.ArgsKind.DICT))
        with self.assertRaisesRegex(ebb.Error, "the training is done, at step 0"):
            trainer.run_step()

    def test_a_handler_of_ones_own_is_called(self):
        calls = []
        before = signal.signal(signal.SIGINT, lambda *_: calls.append(None))
        self.addCleanup(signal.signal, signal.SIGINT, before)
        trainer = self.make(on_step=lambda step: os.kill(os.getpid(), signal.SIGINT))
        trainer.run()
        self.assertEqual((len(calls), trainer.step), (7, 7))

    def test_other_threads_have_no_ctrl_c(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.make().run()["last_step"]))
        thread.start()
        thread.join()
        self.assertEqual(found, [7])

    def test_failing_data_ends_a_loop(self):
        def give(number):
            if number == 2:
                raise KeyError("mine")
            return make_batches()[number]

        with self.assertRaisesRegex(KeyError, "mine"), self.make(give) as trainer:
            for step in trainer:
                self.assertLess(step.number, 3)
        self.assertEqual(trainer.step, 2)

    def test_a_loop_that_is_left_saves(self):
        with self.assertRaises(KeyError), self.make(resume=self.place("state")) as trainer:
            for step in trainer:
                if step.number == 3:
                    raise KeyError
        self.assertEqual(self.make(resume=self.place("state")).run()["first_step"], 3)

    def test_orders_that_nobody_can_repeat_are_refused(self):
        with self.assertRaisesRegex(ValueError, "data is a generator, which gives its batches once, and resume is set"):
            self.make((row for row in make_batches()), resume=self.place("state"))
        with self.assertRaisesRegex(ValueError, "evaluate is a generator, which gives its batches once"):
            self.make(evaluate=(row for row in make_batches()))


class Ranks(Case):
    def test_ranks_train_as_one(self):
        alone = self.make(steps=3)
        alone.run()
        found = []

        def train(group):
            mesh = ebb.Mesh.new(group, ["data"], [-1])
            model = make_model()
            ebb.replicate(model)
            trainer = ebb.Trainer(model, make_batches(), steps=3, learning_rate=1e-2, clip=1.0, mesh=mesh,
                                  progress=False)
            trainer.run()
            found.append((trainer.losses, weights(model)))

        ebb.run_ranks(2, train)
        self.assertEqual(found[0][0], found[1][0])
        np.testing.assert_allclose(found[0][0], alone.losses, rtol=1e-5)
        np.testing.assert_allclose(found[0][1], weights(alone.model), rtol=0, atol=2e-4)


# A program that holds arrays and tensors, and keeps a budget of the process.
_PROGRAM = """
import sys, ebb, numpy
arrays, tensors = numpy.ones(1 << 21), ebb.ones(1 << 22)
ebb.manual_seed(1)
model = ebb.Gpt(ebb.GptConfig("tiny", vocab=64, context=64, width=64, heads=4, layers=8))
rows = numpy.random.default_rng(0).integers(0, 64, (16, 65))
trainer = ebb.Trainer(model, [rows], steps=4, memory=sys.argv[1], progress=False)
try:
    trainer.run()
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(peak * 1024, trainer.losses)
except ebb.Error as error:
    print(error)
"""


def run_program(memory):
    return subprocess.run([sys.executable, "-c", _PROGRAM, memory], capture_output=True, text=True, check=True).stdout


class Budgets(Case):
    def make_larger(self, device="cpu", **options):
        ebb.manual_seed(1)
        with ebb.default_device(device):
            model = ebb.Gpt(ebb.GptConfig("tiny", vocab=64, context=64, width=32, heads=2, layers=6, dropout=0.1))
        rows = np.random.default_rng(0).integers(0, 64, (8, 65))
        return ebb.Trainer(model, [rows], steps=3, progress=False, **options)

    def test_a_budget_keeps_the_bits(self):
        plain = self.make_larger("sim")
        plain.run()
        need, least, losses, expected = plain.report["peak_bytes"], [], plain.losses, weights(plain.model)
        del plain  # whose tensors would count, too
        gc.collect()
        budget = ebb.MemoryBudget(int(0.7 * need))
        trainer = self.make_larger("sim", memory=budget, on_step=lambda step: least.append(budget.least_bytes))
        trainer.run()
        self.assertEqual(trainer.losses, losses)
        self.assertTrue(np.array_equal(weights(trainer.model), expected))
        self.assertEqual(trainer.report["budget_bytes"], int(0.7 * need))
        self.assertTrue(all(0 < one <= int(0.7 * need) for one in least), least)
        self.assertEqual(trainer.run(steps=5)["last_step"], 5)

    def test_one_that_is_too_small_names_the_least(self):
        trainer = self.make_larger("sim", memory=1 << 16)
        with self.assertRaisesRegex(ebb.Error, r"a budget of 0\.1 MiB is too .* needs at least [\d.]+ MiB") as caught:
            trainer.run()
        least = float(re.search(r"at least ([\d.]+) MiB", str(caught.exception))[1])
        del trainer, caught
        gc.collect()
        trainer = self.make_larger("sim", memory=f"{least + 0.1}MiB")
        self.assertEqual(trainer.run()["last_step"], 3)

    def test_a_loop_of_ones_own_keeps_it(self):
        def train(budget):
            ebb.manual_seed(1)
            trainer = self.make_larger("sim")
            model, optimizer = trainer.model, trainer.optimizer
            rows = ebb.tensor(np.random.default_rng(0).integers(0, 64, (8, 65)), device="sim")
            tokens, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
            self.assertEqual(trainer.step, 0)

            def step():
                loss = model.loss(tokens, targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            if budget is not None:
                budget.plan(ebb.TrainingState(model, optimizer), step)
            return [(step() if budget is None else budget.run_step(step)).item() for _ in range(4)]

        budget = ebb.MemoryBudget("16MiB")
        self.assertEqual(train(budget), train(None))
        self.assertEqual(budget.as_dict()["budget_bytes"], 16 << 20)
        budget.release()
        for call, message in ((lambda: budget.plan(5, lambda: None), r"plan\(\): training is 5: it must be an ebb.T"),
                              (lambda: budget.run_step(5), r"run_step\(\): step is 5: it must be a function"),
                              (lambda: ebb.MemoryBudget("much"), "memory budget: .*much")):
            with self.assertRaisesRegex((TypeError, ebb.Error), message):
                call()

    def test_exceptions_of_a_dry_step_come_back(self):
        def fail(*_):
            raise KeyError("mine")

        def interrupt(model, batch):
            os.kill(os.getpid(), signal.SIGINT)
            return model.loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())

        for loss, kind in ((fail, KeyError), (interrupt, KeyboardInterrupt)):
            trainer = self.make_larger(memory="1GiB", loss=loss)
            with self.assertRaises(kind):
                trainer.run()
            self.assertEqual(trainer.step, 0)

    def test_a_trainer_is_made_within_a_budget(self):
        taken, plain = [], self.make_larger()
        plain.run()

        def make(concessions):
            taken.append(concessions)
            return self.make_larger()

        trainer = ebb.Trainer.new_within("1GiB", make)
        self.assertGreater(len(taken), 1)
        trainer.run()
        self.assertEqual(trainer.losses, plain.losses)

        def fail(concessions):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            ebb.Trainer.new_within("1GiB", fail)

    def test_a_process_keeps_it(self):
        least = re.search(r"needs at least ([\d.]+) MiB", run_program("32MiB"))
        self.assertIsNotNone(least)
        peak, _, losses = run_program(f"{float(least[1]) + 4}MiB").partition(" ")
        self.assertLessEqual(int(peak), (float(least[1]) + 4) * 2**20)
        free_peak, _, free_losses = run_program("4GiB").partition(" ")
        self.assertEqual(losses, free_losses)
        self.assertGreater(int(free_peak), int(peak))


class Finetuning(Case):
    def setUp(self):
        super().setUp()
        with open(self.place("chats.jsonl"), "w", encoding="utf-8") as file:
            for n in range(24):
                file.write(json.dumps({"messages": [{"role": "user", "content": f"What is {n}?"},
                                                    {"role": "assistant", "content": f"{n} it is."}]}) + "\n")

    def tune(self, **options):
        options = {"context": 64, "lora": 4, "learning_rate": 1e-2, "progress": False, **options}
        return ebb.finetune(_MODEL, self.place("chats.jsonl"), **options)

    def test_it_is_the_call_of_c(self):
        options = ebb.FinetuneOptions(context=64, lora_rank=4, learning_rate=1e-2, held_out="0.2")
        found = []
        theirs = _finetune(_MODEL, [self.place("chats.jsonl")], self.place("theirs"), options, None)
        ours = self.tune(out=self.place("ours"), held_out=0.2, on_step=found.append, on_save=found.append)
        self.assertEqual(ours.losses, json.loads(theirs.to_json())["losses"])
        files = os.listdir(self.place("ours"))
        self.assertEqual(filecmp.cmpfiles(self.place("ours"), self.place("theirs"), files, False), (files, [], []))
        self.assertEqual([step.loss for step in found if not isinstance(step, str)], ours.losses)
        self.assertIn(self.place("ours"), found)
        self.assertEqual(ours.report["best_loss"], ours.best_loss)
        self.assertEqual(ours.model(ebb.tensor([[1, 2]])).shape[:2], (1, 2))

    def test_ctrl_c_saves_what_there_is(self):
        for resume in (None, self.place("state")):
            with self.assertRaises(KeyboardInterrupt):
                self.tune(out=self.place("out"), resume=resume, on_step=lambda step: step.number < 3 or os.kill(
                    os.getpid(), signal.SIGINT))
            self.assertIn("adapter_config.json", os.listdir(self.place("out")))
            shutil.rmtree(self.place("out"))
        self.assertEqual(self.tune(resume=self.place("state"), out=self.place("out")).report["first_step"], 3)

    def test_a_failure_leaves_the_output_as_it_is(self):
        def fail(step):
            raise KeyError(step.number)

        with self.assertRaises(KeyError):
            self.tune(out=self.place("out"), on_step=fail)
        self.assertFalse(os.path.exists(self.place("out")))

    def test_settings_are_named(self):
        for options, message in (
                ({"lora": "a"}, r"finetune\(\): lora_rank is 'a': must be an int"),
                ({"lora": 4, "adapter": "x"}, "adapter x and lora_rank"),
                ({"lora": 4, "lora_rank": 8}, r"finetune\(\): lora is 4 and lora_rank is 8: set one of both"),
                ({"learning_rate": 0.0}, r"finetune\(\): learning_rate is 0.0: it must be above 0; leave it out for"),
                ({"epochs": 0}, r"finetune\(\): epochs is 0: it must be above 0; leave it out for the default"),
                ({"steps": 2, "epochs": 1}, "steps 2 and epochs 1"),
                ({"stepz": 1}, r"finetune\(\) has no option 'stepz': did you mean 'steps'\?"),
                ({"allow": "all"}, r"finetune\(\): allow is 'all', and memory is not set"),
                ({"output_dir": "x"}, "write out=\"folder\" for the result, and resume="),
                ({"optim": "x"}, "leave it out: the optimizer is AdamW"),
                ({"held_out": 5}, r"finetune\(\): held_out is 5")):
            with self.subTest(options), self.assertRaisesRegex((TypeError, ValueError, ebb.Error), message):
                self.tune(**options)
        with self.assertRaisesRegex(TypeError, r"finetune\(\): data is 5: it must be the path of a file, or a list"):
            ebb.finetune(_MODEL, 5)
        with self.assertRaisesRegex(ebb.Error, "none must be the path of a folder, Ebb downloads none"):
            ebb.finetune("none", self.place("chats.jsonl"))


class Settings(Case):
    def test_contradictions_name_both(self):
        model = make_model()
        adamw = ebb.AdamW(model, 1e-3)
        for options, message in (
                ({"optimizer": adamw, "learning_rate": 1.0}, "optimizer and learning_rate are set"),
                ({"optimizer": adamw, "weight_decay": 1.0}, "optimizer and weight_decay are set"),
                ({"optimizer": adamw, "lora": 2}, r"optimizer and lora are set: call ebb.lora\(model, rank=8\) before"),
                ({"epochs": 1}, "steps 7 and epochs 1: set one of both"),
                ({"batch_size": 4}, "batch_size is 4, and data gives batches as large as they are"),
                ({"context": 4}, "context is 4, and data gives batches as large as they are"),
                ({"allow": "all"}, "allow is 'all', and memory is not set"),
                ({"memory": ebb.MemoryBudget("1GiB"), "allow": "all"}, "memory is an ebb.MemoryBudget, which has its"),
                ({"warmup": 3}, "warmup is 3, and schedule is not set"),
                ({"schedule": ebb.CosineSchedule(1, 2, 0.0), "warmup": 3}, "warmup is 3, and schedule is an object"),
                ({"steps": None, "schedule": "cosine", "data": iter([])}, "the number of steps is not known: set"),
                ({"steps": None, "epochs": 0.5, "data": iter([])}, "epochs is 0.5, and data has no length: set steps"),
                ({"save_every": 2}, "save_every 2 without resume"),
                ({"evaluate_every": 2}, "evaluate_every 2 without evaluate"),
                ({"save_best": "best"}, "save_best best without evaluate")):
            with self.subTest(options), self.assertRaisesRegex((ValueError, ebb.Error), message):
                self.make(**{"learning_rate": None, **options}).run()

    def test_values_are_named(self):
        for options, message in (
                ({"train_dataset": 5}, "data is 5: it must be an ebb.TextDataset"),
                ({"optimizer": "adamw"}, "optimizer is 'adamw': it must be an optimizer, as ebb.AdamW"),
                ({"schedule": "linear"}, "schedule is 'linear': it must be \"cosine\", \"constant\", or an ebb"),
                ({"schedule": "cosine", "warmup": "a"}, "warmup is 'a': it must be a number of steps"),
                ({"schedule": "cosine", "warmup": 2.5}, "warmup is 2.5: it must be a number of steps"),
                ({"steps": None, "epochs": 0}, "epochs is 0: it must be above 0; leave it out for the default"),
                ({"on_step": 5}, "on_step is 5: it must be a function"),
                ({"progress": 1}, "progress is 1: it must be True or False"),
                ({"memory": 1.5}, "bytes is 1.5: it must be a number"),
                ({"memory": "much"}, "\"much\""),
                ({"clip": -1}, r"Trainer\(\): clip is -1: must be a number of at least 0"),
                ({"stepz": 1}, r"Trainer\(\) has no option 'stepz': did you mean 'steps'\?"),
                ({"budget": 1}, r"Trainer\(\) has no option 'budget': write memory="),
                ({"gradient_checkpointing": True}, "write memory=\"4GiB\", which plans what is recomputed"),
                ({"clip": 1.0, "max_grad_norm": 1.0}, "got clip and max_grad_norm, which mean the same")):
            data = () if "train_dataset" in options else (make_batches(), )
            with self.subTest(options), self.assertRaisesRegex((TypeError, ValueError, ebb.Error), message):
                ebb.Trainer(make_model(), *data, **options)
        with self.assertRaisesRegex(TypeError, r"Trainer\(\) needs data"):
            ebb.Trainer(make_model())
        with self.assertRaisesRegex(TypeError, "model is 5: it must be a module"):
            ebb.Trainer(5, make_batches())

    def test_what_a_loss_returns_is_checked(self):
        for result, message in ((None, "loss returned None: it must be a tensor"), (1.0, "loss returned 1.0"),
                                ((ebb.ones(1), 3), "loss returned .*: it must be a tensor"),
                                (ebb.ones(2), "the loss function returned a tensor of 2 elements")):
            with self.assertRaisesRegex((TypeError, ebb.Error), message):
                self.make(loss=lambda *_, result=result: result).run()

    def test_the_signature_has_all_settings(self):
        import inspect
        names = inspect.signature(ebb.Trainer).parameters
        for name in ("model", "data", "optimizer", "memory", "allow", "steps", "resume", "on_step", "micro_batch_size"):
            self.assertIn(name, names)
        self.assertNotIn("budget", names)
        self.assertEqual(names["progress"].default, True)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Progress(Case):
    def print(self, stream, **options):
        before, sys.stdout = sys.stdout, stream
        try:
            self.make(progress=True, evaluate=make_batches(1), evaluate_every=4, **options).run()
        finally:
            sys.stdout = before
        return stream.getvalue()

    def test_a_pipe_gets_lines(self):
        lines = self.print(io.StringIO()).splitlines()
        steps = [line for line in lines if not line.startswith("Held")]
        self.assertEqual([line[:8] for line in steps], [f"step {i}/7" for i in range(1, 8)])
        held = [line for line in lines if line.startswith("Held")]
        self.assertRegex(held[0], r"^Held out, after step 4: loss \d\.\d{4}, perplexity \d+\.\d\d, the best so far$")
        self.assertNotIn("\r", "".join(lines))

    def test_long_trainings_print_few_lines(self):
        lines = [line for line in self.print(io.StringIO(), steps=40).splitlines() if line.startswith("step")]
        self.assertEqual([line.split("/")[0].split()[-1] for line in lines],
                         [str(i) for i in (1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40)])

    def test_a_terminal_has_one_line(self):
        text = self.print(Terminal())
        self.assertRegex(text, r"\r7/7 [^\n]*\x1b\[K\r\x1b\[KHeld out, after step 7: [^\n]*\n$")
        text = self.print(Terminal(), on_step=print)
        for line in text.split("\n"):
            for shown in line.split("\r"):
                self.assertLess(len(shown.replace("\x1b[K", "")), 80)
        self.assertRegex(text, r"^step 1: [^\n]*\n\r1/7 [^\n]*\x1b\[K\r\x1b\[Kstep 2: ")

    def test_a_notebook_has_one_display(self):
        shown = []

        class Handle:
            def update(self, data, raw):
                shown.append((data["text/plain"], raw))

        def display(data, raw, display_id):
            shown.append((data["text/plain"], raw))
            return Handle()

        shell = types.SimpleNamespace(kernel=object())
        modules = {"IPython": types.SimpleNamespace(get_ipython=lambda: shell),
                   "IPython.display": types.SimpleNamespace(display=display)}
        before = {name: sys.modules.get(name) for name in modules}
        sys.modules.update(modules)
        try:
            self.assertNotIn("\r", self.print(io.StringIO()))
        finally:
            for name, module in before.items():
                sys.modules.pop(name) if module is None else sys.modules.update({name: module})
        self.assertRegex(shown[-1][0], "^ ?(step )?7/7 ")
        self.assertTrue(all(raw for _, raw in shown))

    def test_nothing_is_printed_without_it(self):
        stream = io.StringIO()
        before, sys.stdout = sys.stdout, stream
        try:
            self.make().run()
            for _ in self.make(progress=True):
                pass
        finally:
            sys.stdout = before
        self.assertEqual(stream.getvalue(), "")


class Results(Case):
    def test_losses_are_plotted(self):
        drawn = []

        class Axes:
            def __getattr__(self, name):
                return lambda *args, **kwargs: drawn.append((name, [list(value) if isinstance(value, range) else value
                                                                    for value in args]))

        trainer = self.make(evaluate=make_batches(1))
        trainer.run()
        axes = Axes()
        self.assertIs(trainer.plot(axes), axes)
        self.assertEqual(drawn[0], ("plot", [list(range(1, 8)), trainer.losses]))
        self.assertEqual(drawn[1], ("plot", [[7], [trainer.report["evaluations"][0]["loss"]], "o-"]))

    def test_plot_says_what_it_needs(self):
        trainer = self.make()
        trainer.run()
        before = sys.modules.get("matplotlib")
        sys.modules["matplotlib"] = None
        try:
            with self.assertRaisesRegex(ImportError, r"plot\(\) needs matplotlib: install it"):
                trainer.plot()
        finally:
            sys.modules.pop("matplotlib") if before is None else sys.modules.update(matplotlib=before)

    def test_a_thousand_trainers_leave_nothing(self):
        def make(i):
            model = ebb.Linear(4, 4)
            rows = np.ones((1, 4), np.float32)
            trainer = ebb.Trainer(model, lambda n: {"x": rows, "n": trainer.step} if n < 2 else {},
                                  loss=lambda m, batch: m(batch["x"]).pow(2).mean() + 0 * trainer.step,
                                  on_step=lambda step: trainer.learning_rate, on_note=lambda text: trainer.step,
                                  resume=self.place("state") if i % 100 == 0 else None, progress=False)
            if i % 10 == 0:
                trainer.run()
            return weakref.ref(trainer)

        make(1)
        before, open_files = tensor_bytes(), len(os.listdir("/proc/self/fd"))
        references = [make(i) for i in range(1000)]
        gc.collect()
        self.assertEqual([reference() for reference in references if reference() is not None], [])
        self.assertEqual((tensor_bytes(), len(os.listdir("/proc/self/fd"))), (before, open_files))

    def test_it_can_not_be_derived_from(self):
        with self.assertRaisesRegex(TypeError, "Mine can't be derived from ebb.Trainer: give it functions, as on_"):
            class Mine(ebb.Trainer):  # pylint: disable=unused-variable
                pass


if __name__ == "__main__":
    main()
