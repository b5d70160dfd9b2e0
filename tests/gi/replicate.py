"""Modules that several ranks train together, from Python."""
import threading

from gi.repository import GLib
from support import Ebb, Residual, TestCase, main


def linear():
    Ebb.manual_seed(3)
    return Ebb.Linear(4, 2)


def train(module, x):
    module(x).square().mean().backward()


def grads(module):
    return [None if p.grad is None else p.grad.numpy().copy() for p in module.parameters()]


def batch(rank):
    return Ebb.randn(8, 4, generator=Ebb.Generator.new(100 + rank))


class Replicate(TestCase):
    def test_same_module_and_gradients_on_one_rank(self):
        alone, together = linear(), linear()
        self.assertIs(Ebb.replicate(together), together)
        self.assertTrue(Ebb.replicate_is_wrapped(together))
        for module in (alone, together):
            train(module, batch(0))
        for a, b in zip(grads(alone), grads(together)):
            self.assertTrue((a == b).all())
        self.assertIn("2 of 2 parameters", Ebb.replicate_report(together))
        self.assertTrue(Ebb.replicate_unwrap(together))

    def test_ranks_get_the_mean(self):
        found = {}

        def rank(group):
            module = Ebb.Linear(4, 2)   # of weights of its own, until it is replicated
            Ebb.replicate(module, group)
            state = {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}
            train(module, batch(group.get_rank()))
            found[group.get_rank()] = state, grads(module)

        Ebb.run_ranks(2, rank)
        (state, first), (other_state, second) = found[0], found[1]
        self.assertTrue(all((state[name] == other_state[name]).all() for name in state))
        expected = linear()
        expected.load_state_dict({name: Ebb.from_numpy(value) for name, value in state.items()})
        for number in range(2):
            train(expected, batch(number))
        for a, b, c in zip(first, second, grads(expected)):
            self.assertTrue((a == b).all())
            self.assertLess(abs(2 * a - c).max(), 1e-5)

    def test_no_sync_is_a_region_and_reduces_once(self):
        calls = []

        def rank(group):
            module = Ebb.replicate(linear(), group)
            with Ebb.no_sync():
                self.assertFalse(Ebb.is_gradient_sync_enabled())
                train(module, batch(group.get_rank()))
            self.assertTrue(Ebb.is_gradient_sync_enabled())
            before = group.get_n_calls(Ebb.Collective.ALL_REDUCE)
            train(module, batch(2 + group.get_rank()))
            calls.append((before, group.get_n_calls(Ebb.Collective.ALL_REDUCE)))

        Ebb.run_ranks(2, rank)
        self.assertEqual(calls, [(0, 1), (0, 1)])

    def test_no_sync_ends_with_an_exception(self):
        with self.assertRaises(KeyError):
            with Ebb.no_sync():
                raise KeyError
        self.assertTrue(Ebb.is_gradient_sync_enabled())

    def test_a_python_module_is_replicated(self):
        def rank(group):
            module = Ebb.replicate(Residual(Ebb.Linear(4, 4)), group, bucket_bytes=1)
            y, _ = module(batch(group.get_rank()))
            y.square().mean().backward()
            self.assertEqual(group.get_n_calls(Ebb.Collective.ALL_REDUCE), 3)

        Ebb.run_ranks(2, rank)

    def test_unused_parameters(self):
        def rank(unused):
            def run(group):
                used, idle = Ebb.Linear(4, 2), Ebb.Linear(4, 2)
                module = Ebb.replicate(Ebb.ModuleList([used, idle]), group, unused_parameters=unused)
                train(used, batch(0))
                self.assertIsNone(idle.weight.grad)
                return module
            return run

        Ebb.run_ranks(2, rank("zero"))
        with self.assertRaisesRegex(GLib.Error, "2 of 4 trainable parameters.*1.weight, 1.bias"):
            Ebb.run_ranks(2, rank("error"))

    def test_exceptions_of_ranks_come_back(self):
        def rank(group):
            if group.get_rank() == 1:
                raise ZeroDivisionError("rank 1 divides")
            group.barrier()

        with self.assertRaisesRegex(ZeroDivisionError, "rank 1 divides"):
            Ebb.run_ranks(2, rank)
        self.assertEqual(threading.active_count(), 1)

    def test_mistakes_name_what_is_right(self):
        module = linear()
        for arguments, options, message in (
                (([module],), {}, "ebb.Sequential"),
                ((module, 3), {}, "must be an ebb.ProcessGroup"),
                ((module,), {"unused_parameters": "none"}, "'error', 'zero'"),
                ((module,), {"bucket_bytes": 0}, "an int from 1 to")):
            with self.assertRaisesRegex((TypeError, ValueError), message):
                Ebb.replicate(*arguments, **options)

    def test_mesh(self):
        def rank(group):
            mesh = Ebb.Mesh.new(group, ["data", "shard"], [2, -1])
            self.assertEqual(mesh.get_size("shard"), 2)
            self.assertEqual(mesh.get_coordinate("data") * 2 + mesh.get_coordinate("shard"), group.get_rank())
            self.assertEqual(mesh.get_group("shard").get_size(), 2)

        Ebb.run_ranks(4, rank)
        with self.assertRaisesRegex(GLib.Error, "the group has 1 ranks, not 3"):
            Ebb.Mesh.new(Ebb.ProcessGroup.get_default(), ["data"], [3])


if __name__ == "__main__":
    main()
