"""Process groups, sharded and replicated modules from Python, on ranks that are threads."""
import os
import unittest.mock

from gi.repository import GLib
from support import Ebb, TestCase, main


def mlp():
    Ebb.manual_seed(1)
    return Ebb.Sequential(Ebb.Linear(5, 7), Ebb.Tanh(), Ebb.Linear(7, 3))


def train(wrap, group, n_steps=3):
    """The weights after some steps, of each rank's own input."""
    module = wrap(mlp(), group)
    optimizer = Ebb.AdamW(module, 1e-2)
    for step in range(n_steps):
        loss = module(Ebb.full((2, 5), 1.0 + step + group.rank)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with Ebb.summon_full_params(module):
        return [parameter.detach().tolist() for parameter in module.parameters()]


def shard(module, group):
    return Ebb.fully_shard_wrap_each(module, Ebb.Linear, group)


def flatten(module, group):
    return Ebb.fully_shard_wrap_each(module, lambda child: isinstance(child, Ebb.Linear), group, flatten=True,
                                     reshard_after_forward=False, predivide_factor=2.0)


def auto(module, group):
    return Ebb.fully_shard_auto_wrap(module, 20, group, prefetch=False)


class Groups(TestCase):
    def test_collectives(self):
        def run(group, scale):
            rank = float(group.rank)
            reduced = group.all_reduce(Ebb.tensor([rank, 1.0]) * scale)
            work = group.all_reduce_async(reduced, "mean")
            work.wait()
            return (reduced.tolist(), group.all_reduce(Ebb.tensor([rank]), "max").tolist(),
                    group.reduce_scatter(Ebb.ones(3)).tolist(), group.broadcast(Ebb.tensor([rank]), 2).tolist(),
                    group.all_gather(Ebb.tensor([rank])).tolist())

        results = Ebb.run_ranks(3, run, 2.0)
        self.assertEqual(results, [([6.0, 6.0], [2.0], [3.0], [2.0], [0.0, 1.0, 2.0])] * 3)

    def test_losses_of_classes_in_parts(self):
        def run(group):
            Ebb.manual_seed(1)
            x, weight, targets = Ebb.randn(6, 4), Ebb.randn(7, 4), Ebb.tensor([0, 6, 3, -100, 5, 1])
            first, count = (0, 4) if group.rank == 0 else (4, 3)
            part, column = weight[first:first + count], targets.reshape(-1, 1)
            return (Ebb.fused_linear_cross_entropy(x, weight, targets).item(),
                    *((Ebb.vocab_parallel_linear_cross_entropy(x, part, given, 7).item(),
                       Ebb.vocab_parallel_cross_entropy(Ebb.linear(x, part), given, 7, group).item())
                      for given in (targets, column)))

        for whole, (linear, logits), by_column in Ebb.run_ranks(2, run):
            self.assertAlmostEqual(linear, whole, places=6)
            self.assertAlmostEqual(logits, whole, places=6)
            self.assertEqual(by_column, (linear, logits))

    def test_counters_and_attributes(self):
        def run(group):
            group.barrier()
            group.all_gather(Ebb.ones(4))
            return group.rank, group.size, group.backend, group.counters()

        for rank, result in enumerate(Ebb.run_ranks(2, run)):
            self.assertEqual(result[:3], (rank, 2, "thread"))
            self.assertEqual(result[3]["all_gather"], {"calls": 1, "bytes": 16})
            self.assertEqual(set(result[3]), {"barrier", "all_gather"})

    def test_an_exception_of_one_rank_comes_out(self):
        class Own(Exception):
            pass

        def run(group):
            if group.rank == 1:
                raise Own("gone")
            group.barrier()

        for _ in range(3):
            with self.assertRaisesRegex(Own, "gone"):
                Ebb.run_ranks(3, run)
        self.assertEqual(Ebb.run_ranks(2, lambda group: group.rank), [0, 1])

    def test_one_process_is_one_rank(self):
        group = Ebb.init_process_group("single")
        self.assertEqual((group.rank, group.size, group.all_gather(Ebb.ones(2)).tolist()), (0, 1, [1.0, 1.0]))
        Ebb.destroy_process_group()

    def test_ranks_of_torchrun_without_a_gpu_are_told_what_to_start(self):
        started = {"RANK": "1", "WORLD_SIZE": "2"}
        alone = {name: value for name, value in os.environ.items()
                 if not name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_"))}
        with unittest.mock.patch.dict(os.environ, {**alone, **started}, clear=True):
            with self.assertRaises(GLib.Error) as caught:
                Ebb.init_process_group()
        if not caught.exception.matches(Ebb.error_quark(), Ebb.Error.PROCESS_GROUP):  # no module, or no GPU
            self.assertIn("mpirun -n 2 ...", caught.exception.message)
            self.assertNotIn("\n", caught.exception.message)


class Modules(TestCase):
    def test_wrappers_train_alike(self):
        expected = Ebb.run_ranks(2, lambda group: train(Ebb.replicate, group))
        self.assertEqual(expected[0], expected[1])
        for wrap in shard, flatten, auto:
            for weights in Ebb.run_ranks(2, lambda group, wrap=wrap: train(wrap, group)):
                for mine, whole in zip(weights, expected[0]):
                    self.assert_near(mine, whole)

    def assert_near(self, mine, whole):
        if isinstance(mine, list):
            self.assertEqual(len(mine), len(whole))
            for a, b in zip(mine, whole):
                self.assert_near(a, b)
        else:
            self.assertAlmostEqual(mine, whole, places=6)

    def test_each_rank_has_its_part(self):
        def run(group):
            module = shard(mlp(), group)
            names = [name for name, _ in module.named_parameters()]
            report = Ebb.shard_report(module, as_dict=True)
            return [list(parameter.shape) for parameter in module.parameters()], names, len(report)

        first, second = Ebb.run_ranks(2, run)
        self.assertEqual(first[0], [[3, 5], [3], [1, 7], [1]])
        self.assertEqual(second[0], [[4, 5], [4], [2, 7], [2]])
        self.assertEqual(first[1], ["0.weight", "0.bias", "2.weight", "2.bias"])
        self.assertEqual(first[2], 3)

    def test_auto_wrap_goes_by_size_and_type(self):
        def run(group):
            def units(least, **types):
                module = Ebb.fully_shard_auto_wrap(mlp(), least, group, **types)
                return [unit["elements"] for unit in Ebb.shard_report(module, as_dict=True)]

            return (units(24), units(25), units(43), units(20, exclude_wrap_modules=[Ebb.Linear]),
                    units(20, force_leaf_modules=[Ebb.Sequential]))

        for found in Ebb.run_ranks(2, run):
            self.assertEqual(found, ([42, 24], [42], [66], [66], []))

    def test_no_sync_waits_for_the_last(self):
        def run(group):
            module = Ebb.replicate(mlp(), group)
            group.reset_counters()
            with Ebb.no_sync():
                module(Ebb.ones(2, 5)).sum().backward()
            before = group.counters()
            module(Ebb.ones(2, 5)).sum().backward()
            return before, group.counters()["all_reduce"]["calls"]

        for before, n_calls in Ebb.run_ranks(2, run):
            self.assertEqual((before, n_calls), ({}, 1))

    def test_mistakes_are_told(self):
        for call, error, said in ((lambda: Ebb.fully_shard(mlp(), flat=True), TypeError, "no option 'flat'"),
                                  (lambda: Ebb.fully_shard(mlp(), reshard_after_forward="often"), ValueError, "often"),
                                  (lambda: Ebb.replicate(mlp(), unused_parameters="skip"), ValueError, "skip"),
                                  (lambda: Ebb.fully_shard_wrap_each(mlp(), 3), TypeError, "type of modules"),
                                  (lambda: Ebb.run_ranks(2, lambda group: group.all_reduce(Ebb.ones(1), "half")),
                                   ValueError, "half")):
            with self.assertRaisesRegex(error, said):
                call()


if __name__ == "__main__":
    main()
