"""Profiles from Python."""
import json
import os
import tempfile
import threading

from support import Ebb, TestCase, main


def train(module, x, optimizer):
    module(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


class Profile(TestCase):
    def setUp(self):
        Ebb.manual_seed(1)
        self.model = Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Linear(16, 8))
        self.optimizer = Ebb.AdamW(self.model, 1e-3)
        self.x = Ebb.randn(4, 8)

    def test_it_counts_what_runs_inside(self):
        with Ebb.profile() as p:
            self.assertTrue(p.is_running())
            for _ in range(2):
                train(self.model, self.x, self.optimizer)
        self.assertFalse(p.is_running())
        train(self.model, self.x, self.optimizer)
        self.assertEqual(p.get_n_steps(), 2)
        self.assertEqual(p.count_ops(Ebb.Phase.FORWARD, "linear"), 4)
        self.assertEqual(p.count_ops(Ebb.Phase.BACKWARD, "linear"), 4)
        self.assertEqual(p.count_ops(Ebb.Phase.RECOMPUTE, None), 0)
        self.assertGreater(p.get_seconds(), p.get_product_seconds())

    def test_a_module_of_python_has_its_path(self):
        class Twice(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.inner = Ebb.Linear(8, 8)

            def forward(self, x):
                return self.inner(self.inner(x)) * 2

        model = Ebb.checkpoint_wrapper(Ebb.Sequential(Twice()))
        with Ebb.profile() as p:
            model(self.x).sum().backward()
        modules = {module["path"]: module for module in p.as_dict()["modules"]}
        for phase in "forward", "recompute", "backward":
            self.assertGreater(modules["0.inner"][phase], 0)
        self.assertGreater(modules["0"]["forward"], 0)

    def test_the_table_shows_the_floor_when_asked(self):
        with Ebb.profile() as p:
            train(self.model, self.x, self.optimizer)
        self.assertEqual(p.get_floor_seconds(), -1)
        self.assertIsNone(p.as_dict()["floor_seconds"])
        self.assertNotIn("products alone", p.table())
        self.assertIn("products alone", p.table(floor=True))
        self.assertGreater(p.get_floor_seconds(), 0)
        self.assertIn("linear", str(p))
        self.assertLessEqual(max(map(len, str(p).splitlines())), 120)

    def test_a_trace_is_written_at_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            with Ebb.profile(trace=path):
                train(self.model, self.x, self.optimizer)
            with open(path, encoding="utf-8") as file:
                names = {event["name"] for event in json.load(file)["traceEvents"]}
            self.assertLessEqual({"linear", "backward", "optimizer step", "matmul", "0"}, names)
            self.assertEqual(os.listdir(folder), ["trace.json"])

    def test_errors_are_exceptions(self):
        with Ebb.profile() as p:
            with self.assertRaisesRegex(Exception, "runs already"):
                p.start()
            with self.assertRaisesRegex(Exception, "another one"):
                with Ebb.profile():
                    pass
        with self.assertRaisesRegex(Exception, "nowhere"):
            p.save_trace("/nowhere/trace.json")

    def test_an_exception_inside_stops_it(self):
        with self.assertRaisesRegex(ValueError, "inside"):
            with Ebb.profile() as p:
                raise ValueError("inside")
        self.assertFalse(p.is_running())

    def test_threads_have_their_own(self):
        profiles = []

        def run():
            with Ebb.profile() as p:
                Ebb.tanh(self.x)
            profiles.append(p)

        with Ebb.profile() as own:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        self.assertEqual(own.count_ops(Ebb.Phase.OTHER, None), 0)
        self.assertEqual(profiles[0].count_ops(Ebb.Phase.OTHER, "tanh"), 1)


if __name__ == "__main__":
    main()
