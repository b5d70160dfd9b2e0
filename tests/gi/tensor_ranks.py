"""Models whose layers several ranks share, from Python: plans, others' configurations, random numbers, stores."""
import json
import os
import tempfile

from gi.repository import GLib
from support import Ebb, TestCase, main

VOCAB, CONTEXT = 32, 8


def make_gpt(dropout=0.0):
    config = Ebb.GptConfig.new()
    for name, value in (("layers", 2), ("width", 16), ("heads", 4), ("context", CONTEXT), ("vocab", VOCAB)):
        setattr(config, name, value)
    config.dropout = dropout
    Ebb.manual_seed(1)
    return Ebb.Gpt(config)


def make_batch():
    tokens = Ebb.tensor([[(7 * i + 3 * j) % VOCAB for j in range(CONTEXT + 1)] for i in range(2)], dtype=Ebb.int64)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train(model, n_steps=3):
    optimizer, losses = Ebb.AdamW(model, 1e-2), []
    for _ in range(n_steps):
        loss = model.loss(*make_batch())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def oslo(n_ranks=2, **switches):
    return {"model_parallelism": {"enable": True, "tensor_parallel_size": n_ranks},
            "activation_checkpointing": {"enable": True, **switches}}


class TensorRanksTestCase(TestCase):
    def assert_close(self, losses, expected):
        self.assertEqual(len(losses), len(expected))
        for loss, other in zip(losses, expected):
            self.assertLess(abs(loss - other), 1e-5 * abs(other))


class Parallelize(TensorRanksTestCase):
    def test_the_same_module_and_losses(self):
        expected = train(make_gpt())
        for keywords in {}, {"sequence_parallel": True}, {"synchronize_weights": False}:
            def rank(group, keywords=keywords):
                model = make_gpt()
                self.assertIs(Ebb.parallelize(model, group, **keywords), model)
                self.assertTrue(Ebb.parallel_is_parallelized(model))
                self.assertEqual(Ebb.parallel_get_group(model), group)
                return model.h[0].mlp.c_fc.weight.shape, train(model)

            for shape, losses in Ebb.run_ranks(2, rank):
                self.assertEqual(list(shape), [32, 16])
                self.assert_close(losses, expected)

    def test_a_plan_is_patterns_and_styles(self):
        def make():
            Ebb.manual_seed(4)
            return Ebb.Sequential(Ebb.Linear(6, 10), Ebb.Tanh(), Ebb.Linear(10, 6))

        x = Ebb.randn(3, 6, generator=Ebb.Generator.new(5))
        expected = make()(x).numpy()

        def rank(group):
            model = Ebb.parallelize(make(), group, plan={"0": "column", "2": Ebb.ParallelStyle.ROW})
            self.assertIsInstance(model[0], Ebb.ColumnParallelLinear)
            self.assertIsInstance(model[2], Ebb.RowParallelLinear)
            return model(x).detach().numpy().copy(), {name: tensor.numpy().copy() for name, tensor in
                                                      Ebb.get_full_state_dict(model, False).items()}

        whole = {name: tensor.numpy() for name, tensor in make().state_dict().items()}
        for output, state in Ebb.run_ranks(2, rank):
            self.assertLess(abs(output - expected).max(), 1e-5)
            self.assertEqual(list(state), list(whole))
            self.assertTrue(all((state[name] == whole[name]).all() for name in whole))

    def test_a_mistake_names_what_is_right(self):
        def rank(group):
            for error, words, call in (
                    (TypeError, "module is 3", lambda: Ebb.parallelize(3, group)),
                    (TypeError, "group is 2: it must be an ebb.ProcessGroup", lambda: Ebb.parallelize(make_gpt(), 2)),
                    (TypeError, "plan is 'mlp': it must be", lambda: Ebb.parallelize(make_gpt(), group, plan="mlp")),
                    (ValueError, r"for 'h\.\*' is 'diagonal', which is no ParallelStyle: it must be one of 'column'",
                     lambda: Ebb.parallelize(make_gpt(), group, plan={"h.*": "diagonal"})),
                    (TypeError, "for 'wte' is 3: it must be one of",
                     lambda: Ebb.parallelize(make_gpt(), group, plan={"wte": 3})),
                    (TypeError, "pattern 3 must be a str",
                     lambda: Ebb.parallelize(make_gpt(), group, plan={3: "row"})),
                    (TypeError, "sequence_parallel is 'no': must be True or False",
                     lambda: Ebb.parallelize(make_gpt(), group, sequence_parallel="no")),
                    (GLib.Error, 'no dimension "tnesor": it has "data", "tensor"', lambda: Ebb.parallelize(
                        make_gpt(), Ebb.Mesh.new(group, ["data", "tensor"], [1, 2]).get_group("tnesor"))),
                    (GLib.Error, r'"h\.0\.mlp\.c_fc" gives .* row, .*"h\.\*\.mlp\.c_fc" \(column\)',
                     lambda: Ebb.parallelize(make_gpt(), group, plan={"h.*.mlp.c_fc": "column",
                                                                      "h.0.mlp.c_fc": "row"})),
                    (GLib.Error, "nothing", lambda: Ebb.parallelize(make_gpt(), group, plan={"nothing": "row"})),
                    (GLib.Error, "Linear", lambda: Ebb.parallelize(Ebb.Linear(2, 2), group))):
                with self.assertRaisesRegex(error, words):
                    call()

        Ebb.run_ranks(2, rank)

    def test_gradients_go_through_collectives(self):
        def rank(group):
            x = Ebb.full([2, 4], group.rank + 1.0).requires_grad_()
            part = Ebb.parallel_scatter(Ebb.parallel_reduce(Ebb.parallel_copy(x, group), group), 1, group)
            whole = Ebb.parallel_gather(part, 1, group)
            summed = Ebb.parallel_reduce_scatter(Ebb.parallel_gather(part, 1, sum_gradient=True), 0)
            (whole.sum() + summed.sum()).backward()
            return list(part.shape), whole.tolist(), summed.tolist(), x.grad.tolist()

        for part, whole, summed, grad in Ebb.run_ranks(2, rank):
            self.assertEqual((part, whole, summed), ([2, 2], [[3.0] * 4] * 2, [[6.0] * 4]))
            self.assertEqual(grad, [[6.0] * 4] * 2)

    def test_classes_that_ranks_share_have_the_loss_of_all(self):
        x, weight, targets = Ebb.randn(3, 4), Ebb.randn(6, 4) * 3, Ebb.tensor([0, 5, 2])
        plain = Ebb.fused_linear_cross_entropy(x, weight, targets)

        def rank(group):
            part = weight[3 * group.rank:3 * group.rank + 3]
            return [Ebb.vocab_parallel_linear_cross_entropy(x, part, targets, 6, group, softcap=cap).item()
                    for cap in (0.0, 0.5)]

        for uncapped, capped in Ebb.run_ranks(2, rank):
            self.assertAlmostEqual(uncapped, plain.item(), delta=1e-5)
            self.assertAlmostEqual(capped, Ebb.cross_entropy((x @ weight.T).soft_cap(0.5), targets).item(), delta=1e-5)
            self.assertNotAlmostEqual(capped, uncapped, delta=1e-2)

    def test_parts_of_a_block_share_heads_and_hidden_values(self):
        def rank(group):
            attention, mlp = Ebb.parallel_attention(8, 4, causal=True, group=group), Ebb.parallel_mlp(8, 32)
            out = mlp(attention(Ebb.ones(1, 3, 8)))
            return list(attention.c_attn.weight.shape), list(mlp.c_proj.weight.shape), list(out.shape)

        for attention, mlp, out in Ebb.run_ranks(2, rank):
            self.assertEqual((attention, mlp, out), ([12, 8], [8, 16], [1, 3, 8]))

    def test_layers_are_made_as_others_are(self):
        def rank(group):
            up = Ebb.ColumnParallelLinear(8, 12, group=group)
            down = Ebb.RowParallelLinear(12, 8, group=group)
            embedding = Ebb.VocabParallelEmbedding(7, 8, group=group)
            tokens = Ebb.tensor([0, 3, 6], dtype=Ebb.int64)
            return list(up.weight.shape), list(down.weight.shape), list(down(up(embedding(tokens))).shape)

        for up, down, out in Ebb.run_ranks(2, rank):
            self.assertEqual((up, down, out), ([6, 8], [8, 6], [3, 8]))


class Configurations(TensorRanksTestCase):
    def test_initialize_does_what_oslo_says(self):
        expected = train(make_gpt())

        def rank(group, config):
            model = make_gpt()
            self.assertIs(Ebb.initialize(model, config), model)
            self.assertEqual(Ebb.initialize_get_mesh(model).get_size("tensor"), 2)
            loss = model.loss(*make_batch())
            store = Ebb.initialize_get_options(model).get_store()
            held = store.get_bytes_held() if store is not None else None
            loss.backward()
            return held, type(store), train(model)[0]

        whole = 2 * 2 * CONTEXT * 16 * 4
        for switches in ({}, {"partitioned_checkpointing": True},
                         {"partitioned_checkpointing": True, "contiguous_checkpointing": True,
                          "cpu_checkpointing": True}):
            for held, kind, loss in Ebb.run_ranks(2, rank, oslo(**switches)):
                self.assert_close([loss], expected[:1])
                if switches:
                    self.assertTrue(issubclass(kind, Ebb.PartitionedStore))
                    self.assertLessEqual(held, whole // 2 + 2 * 128)  # and some elements of each to compare

    def test_a_configuration_may_be_text_or_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "oslo.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(oslo(), file)

            def rank(group):
                for config in json.dumps(oslo()), path:
                    self.assertTrue(Ebb.parallel_is_parallelized(Ebb.initialize(make_gpt(), config)))

            Ebb.run_ranks(2, rank)
        with self.assertRaisesRegex(TypeError, "config is 3: it must be a dict"):
            Ebb.initialize(make_gpt(), 3)
        with self.assertRaisesRegex(GLib.Error, "partitioned_checkpointing"):
            Ebb.initialize(make_gpt(), oslo(1, partitioned_checkpointing=True))

    def test_megatrons_and_deepspeeds_take_a_mesh(self):
        def rank(group):
            mesh = Ebb.Mesh.new(group, ["data", "tensor"], [-1, 2])
            model = Ebb.parallelize(make_gpt(), mesh.get_group("tensor"))
            Ebb.recompute_configure(model, {"recompute_granularity": "full", "recompute_method": "uniform",
                                            "recompute_num_layers": 1, "distribute_saved_activations": True}, mesh)
            losses = train(model)
            Ebb.checkpointing_configure(mesh, {"activation_checkpointing": {"partition_activations": True}})
            self.assertIsInstance(Ebb.checkpointing_get_options().get_store(), Ebb.PartitionedStore)
            with self.assertRaisesRegex(GLib.Error, "tensor"):
                Ebb.checkpointing_configure(Ebb.Mesh.new(group, ["data"], [2]), partition_activations=True)
            Ebb.checkpointing_reset()
            return losses

        expected = train(make_gpt())
        for losses in Ebb.run_ranks(2, rank):
            self.assert_close(losses, expected)


class RandomNumbers(TestCase):
    def test_a_fork_is_a_region(self):
        tracker = Ebb.GeneratorTracker.new()
        tracker.add("mine", 7)
        Ebb.manual_seed(1)
        outside = Ebb.rand(4)
        with tracker.fork("mine") as generator:
            self.assertEqual(generator.get_seed(), 7)
            inside = Ebb.rand(4)
        Ebb.manual_seed(7)
        self.assert_same(inside, Ebb.rand(4))
        Ebb.manual_seed(1)
        self.assert_same(outside, Ebb.rand(4))
        with self.assertRaises(KeyError), tracker.fork("mine"):
            raise KeyError
        self.assertEqual(Ebb.Generator.get_default().get_seed(), 1)
        with self.assertRaisesRegex(GLib.Error, "other"), tracker.fork("other"):
            pass
        for name, seed in (("mine", 8), ("yours", 7)):
            with self.assertRaises(GLib.Error):
                tracker.add(name, seed)

    def test_states_are_a_dict(self):
        tracker = Ebb.GeneratorTracker.new()
        tracker.add("mine", 7)
        states = tracker.get_states()
        self.assertEqual(list(states), ["mine"])
        with tracker.fork("mine"):
            first = Ebb.rand(4)
        self.assertNotEqual(tracker.get_states(), states)
        tracker.set_states(states)
        with tracker.fork("mine"):
            self.assert_same(first, Ebb.rand(4))
        tracker.reset()
        self.assertFalse(tracker.has("mine"))

    def test_tensor_ranks_agree_outside_and_differ_inside(self):
        def rank(group):
            Ebb.model_parallel_manual_seed(3, group)
            with Ebb.GeneratorTracker.get_default().fork():
                inside = Ebb.rand(4).numpy().tolist()
            return Ebb.rand(4).numpy().tolist(), inside

        (whole, part), (other_whole, other_part) = Ebb.run_ranks(2, rank)
        self.assertEqual(whole, other_whole)
        self.assertNotEqual(part, other_part)


class Units(TestCase):
    """What DeepSpeed and Megatron-LM call an mpu."""

    def unit(self, mesh, prefix, *, with_groups=True):
        """An object with the functions of these systems for the ranks of a mesh."""
        unit = type("Unit", (), {})()
        for side, name in (prefix, "mp"), ("data", "replica"):
            group = mesh.get_group(name)
            for what, value in ("rank", group.rank), ("world_size", group.size), ("group", group):
                if with_groups or what != "group":
                    setattr(unit, f"get_{side}_parallel_{what}", lambda value=value: value)
        return unit

    def test_each_name_seeds_and_partitions(self):
        def rank(group):
            mesh = Ebb.Mesh.new(group, ["replica", "mp"], [2, 2])
            mesh.set_model_dim("mp")
            units = [mesh, None, mesh.get_group("mp"), self.unit(mesh, "model"), self.unit(mesh, "tensor_model")]
            units += [self.unit(mesh, prefix, with_groups=False) for prefix in ("model", "tensor_model")]
            seeds = []
            for mpu in units:
                Ebb.model_parallel_manual_seed(7, mpu)
                tracker = Ebb.GeneratorTracker.get_default()
                seeds.append((Ebb.Generator.get_default().get_seed(),
                              tracker.get_generator("model-parallel-rng").get_seed()))
            for mpu in units[3:5]:
                Ebb.checkpointing_configure(mpu, partition_activations=True)
                self.assertEqual(Ebb.checkpointing_get_options().get_store().group, mesh.get_group("mp"))
            with self.assertRaisesRegex(GLib.Error, "mpu has 2 ranks, but no group"):
                Ebb.checkpointing_configure(units[5], partition_activations=True)
            Ebb.checkpointing_configure()
            return seeds

        results = Ebb.run_ranks(4, rank)
        for i in range(7):
            alike, apart = zip(*(seeds[i] for seeds in results))
            self.assertEqual((alike[0], alike[1], alike[2] == alike[3], alike[2] == 7), (7, 7, True, False))
            self.assertEqual(apart, (2725, 2726, 2725, 2726))

    def test_a_wrong_unit_is_named(self):
        def rank(group):
            def unit(**functions):
                return type("Unit", (), {name: staticmethod(lambda value=value: value)
                                         for name, value in functions.items()})()

            seed = Ebb.model_parallel_manual_seed
            for error, words, mpu in (
                    (GLib.Error, "nothing says which of them share a model", None),
                    (TypeError, r"get_model_parallel_world_size\(\) or a property", unit(get_data_parallel_rank=1)),
                    (TypeError, r"get_model_parallel_group\(\) gives 'mp': it must give an ebb.ProcessGroup",
                     unit(get_model_parallel_group="mp")),
                    (ValueError, r"get_model_parallel_rank\(\) gives -1", unit(get_model_parallel_rank=-1)),
                    (GLib.Error, "model parallel rank 2 of 2: it must be less",
                     unit(get_model_parallel_rank=2, get_model_parallel_world_size=2)),
                    (GLib.Error, "which of them this is", unit(get_model_parallel_world_size=3)),
                    (GLib.Error, "which model of several this is",
                     unit(get_model_parallel_world_size=3, get_model_parallel_rank=1))):
                with self.assertRaisesRegex(error, words):
                    seed(7, mpu)

        Ebb.run_ranks(2, rank)


class Stores(TestCase):
    def test_a_store_keeps_a_part_on_each_rank(self):
        def rank(group, next_store):
            store = Ebb.PartitionedStore(group, next=next_store() if next_store else None, least_size=0)
            self.assertEqual(store.group, group)
            Ebb.manual_seed(2)
            module = Ebb.checkpoint_wrapper(Ebb.Linear(8, 8), store=store)
            x = Ebb.randn(125, 8, generator=Ebb.Generator.new(3), requires_grad=True)
            loss = module(x).square().sum()
            held, whole = store.get_bytes_held(), store.bytes_full
            loss.backward()
            return held, whole, x.grad.numpy().copy(), store.report(as_dict=True)

        for next_store in None, Ebb.HostStore, lambda: Ebb.DiskStore("/tmp"):
            (first, whole, grad, report), (second, _, other, _) = Ebb.run_ranks(2, rank, next_store)
            self.assertEqual(whole, 125 * 8 * 4)
            for held in first, second:  # and some elements to compare
                self.assertLessEqual(whole / 2, held)
                self.assertLessEqual(held, whole / 2 + 128)
            self.assertTrue((grad == other).all())
            self.assertGreater(report["n_unpacked"], 0)

    def test_a_mistake_names_what_is_right(self):
        def rank(group):
            for error, words, call in ((TypeError, "next is '/tmp': must be an ebb.ActivationStore",
                                        lambda: Ebb.PartitionedStore(group, next="/tmp")),
                                       (TypeError, "no argument 'groups'", lambda: Ebb.PartitionedStore(groups=group))):
                with self.assertRaisesRegex(error, words):
                    call()

        Ebb.run_ranks(2, rank)


if __name__ == "__main__":
    main()
