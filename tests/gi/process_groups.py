"""Process groups from Python: ranks on threads run a callback, works cross the binding, errors name ranks."""
import threading

from gi.repository import GLib

from support import Ebb, TestCase, main

SUM, MEAN, MAX = Ebb.ReduceOp.SUM, Ebb.ReduceOp.MEAN, Ebb.ReduceOp.MAX


class ProcessGroups(TestCase):
    def run_ranks(self, n, function):
        """Each rank's result, in the order of the ranks."""
        results = [None] * n

        def rank(group, *_):
            results[group.get_rank()] = function(group)
            return True

        self.assertTrue(Ebb.run_ranks(n, rank))
        return results

    def test_ranks_are_threads(self):
        def look(group):
            self.assertEqual(group.props.size, 3)
            self.assertEqual(group.get_backend(), "thread")
            self.assertEqual(Ebb.ProcessGroup.get_default().get_rank(), group.get_rank())
            return threading.get_ident()

        self.assertEqual(len(set(self.run_ranks(3, look))), 3)

    def test_operations(self):
        def work(group):
            n, rank = group.get_size(), group.get_rank()
            x = Ebb.full([2 * n, 2], float(rank + 1))
            group.all_reduce(x, SUM)
            piece = group.reduce_scatter(Ebb.full([2 * n, 2], float(rank)), MEAN)
            whole = group.all_gather(Ebb.full([1, 2], float(rank)))
            swapped = group.all_to_all(Ebb.full([n], float(rank)))
            root = Ebb.full([3], float(rank))
            group.broadcast(root, n - 1)
            group.barrier()
            return [tensor.tolist() for tensor in (x, piece, whole, swapped, root)]

        for n in (1, 2, 3):
            for x, piece, whole, swapped, root in self.run_ranks(n, work):
                self.assertEqual(x, [[n * (n + 1) / 2] * 2] * (2 * n))
                self.assertEqual(piece, [[(n - 1) / 2] * 2] * 2)
                self.assertEqual(whole, [[float(r)] * 2 for r in range(n)])
                self.assertEqual(swapped, [float(r) for r in range(n)])
                self.assertEqual(root, [n - 1.0] * 3)

    def test_pairs_and_parts(self):
        def work(group):
            rank = group.get_rank()
            x = Ebb.full([2], float(rank))
            if rank == 0:
                group.send(x, 3)
            elif rank == 3:
                group.recv(x, 0)
            part = group.split(rank % 2)
            y = Ebb.full([1], float(rank))
            part.all_reduce(y, SUM)
            return x.tolist(), part.get_size(), y.tolist()

        results = self.run_ranks(4, work)
        self.assertEqual(results[3][0], [0.0, 0.0])
        self.assertEqual([size for _, size, _ in results], [2] * 4)
        self.assertEqual([y for _, _, y in results], [[2.0], [4.0]] * 2)

    def test_works_are_waited_for(self):
        def work(group):
            x, y = Ebb.ones([4]), Ebb.full([2], float(group.get_rank()))
            first = group.all_reduce_async(x, SUM)
            second = group.broadcast_async(y, 1)
            self.assertTrue(second.wait())
            self.assertTrue(first.is_done())
            self.assertTrue(first.wait())
            return x.tolist(), y.tolist()

        self.assertEqual(self.run_ranks(2, work), [([2.0] * 4, [1.0] * 2)] * 2)

    def test_counters(self):
        def work(group):
            which = Ebb.Collective.ALL_GATHER
            group.all_gather(Ebb.ones([8]))
            counted = group.get_n_calls(which), group.get_n_bytes(which)
            group.reset_counters()
            return counted, group.get_n_calls(which)

        self.assertEqual(self.run_ranks(4, work), [((1, 3 * 8 * 4), 0)] * 4)

    def test_mismatch_names_the_rank(self):
        messages = [None] * 2

        def rank(group, *_):
            try:
                if group.get_rank() == 0:
                    group.all_reduce(Ebb.ones([2, 3]), SUM)
                else:
                    group.all_reduce(Ebb.ones([2, 2]), SUM)
            except GLib.Error as error:
                messages[group.get_rank()] = str(error)
            return True

        self.assertTrue(Ebb.run_ranks(2, rank))
        self.assertIn("on rank 0 of 2: rank 1 called all_reduce (sum) of f32 [2, 2]", messages[0])
        self.assertIn("on rank 1 of 2: rank 0 called all_reduce (sum) of f32 [2, 3]", messages[1])

    def test_exception_of_a_rank_comes_out(self):
        told = []

        def rank(group, *_):
            if group.get_rank() == 1:
                raise KeyError("weights")
            try:
                group.barrier()
            except GLib.Error as error:
                told.append(str(error))
                raise
            return True

        with self.assertRaises(KeyError) as caught:
            Ebb.run_ranks(3, rank)
        self.assertEqual(caught.exception.args, ("weights",))
        self.assertEqual(len(told), 2)
        self.assertIn("rank 1 has failed", told[0])

    def test_group_of_one(self):
        group = Ebb.init_process_group("single")
        self.assertEqual((group.get_rank(), group.get_size(), group.props.backend), (0, 1, "single"))
        x = Ebb.ones([2])
        self.assertIs(group.all_reduce(x, MAX), x)
        self.assertEqual(x.tolist(), [1.0, 1.0])
        Ebb.destroy_process_group()


main()
