"""Memory timelines, estimates and plans from Python."""
import json
import os
import re
import tempfile

from support import Ebb, TestCase, main


class MemoryTimelines(TestCase):
    def setUp(self):
        Ebb.manual_seed(1)
        self.model = Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Linear(16, 8))
        self.optimizer = Ebb.AdamW(self.model, 1e-3)
        self.x = Ebb.randn(64, 8)
        self.train()

    def train(self):
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def record(self, name=None, device=None):
        Ebb.memory_reset_peaks(None)
        with Ebb.memory_timeline(name, device) as timeline:
            self.assertTrue(timeline.is_running())
            self.train()
        self.assertFalse(timeline.is_running())
        return timeline

    def test_its_numbers_are_the_counters_own(self):
        timeline = self.record()
        stats = Ebb.memory_get_stats(None)
        numbers = timeline.as_dict()
        self.assertEqual(numbers["peak_bytes"], stats.get_peak_total())
        self.assertEqual(timeline.get_peak_total(), stats.get_peak_total())
        for purpose, name in ((Ebb.Purpose.PARAMETER, "parameters"), (Ebb.Purpose.ACTIVATION, "activations"),
                              (Ebb.Purpose.OPTIMIZER, "optimizer"), (Ebb.Purpose.GRADIENT, "gradients")):
            self.assertEqual(numbers["purposes"][name], stats.get_peak(purpose), name)
        self.assertGreater(numbers["seconds"], 0)

    def test_the_optimizer_names_what_it_holds(self):
        holders = {holder["name"]: holder for holder in self.record().as_dict(100)["holders"]}
        self.assertEqual(holders["0.weight"]["bytes"], 16 * 8 * 4)
        self.assertEqual(holders["0.weight"]["shape"], "f32 [16, 8]")
        self.assertEqual(holders["2.weight (exp_avg_sq)"]["purpose"], "optimizer")

    def test_modules_that_differ_in_numbers_are_one_holder(self):
        model = Ebb.Sequential(*(Ebb.Linear(8, 8) for _ in range(3)))
        with Ebb.memory_timeline() as timeline:
            timeline.name_module(model)
            loss = model(self.x).sum()
        holders = {(holder["name"], holder["module"], holder["purpose"]): holder
                   for holder in timeline.as_dict(100)["holders"]}
        weights, activations = holders["*.weight", None, "parameters"], holders[None, "*", "activations"]
        self.assertEqual((weights["bytes"], weights["tensors"]), (3 * 8 * 8 * 4, 3))
        self.assertEqual((activations["op"], activations["tensors"]), ("linear", 2))  # what the next one saves
        loss.backward()

    def test_holders_that_differ_in_shape_alone_are_in_order(self):
        layers = Ebb.ModuleList([Ebb.Linear(2 ** i, 64 // 2 ** i, bias=False) for i in (*range(7), *range(7))])
        with Ebb.memory_timeline() as timeline:
            timeline.name_module(layers)
            kept = [layer(Ebb.ones(1, layer.in_features)) for layer in layers]
        shapes = [holder["shape"] for holder in timeline.as_dict(100)["holders"] if holder["name"] == "*.weight"]
        self.assertEqual((len(kept), len(shapes), shapes), (14, 7, sorted(shapes)))

    def test_the_table_has_the_ten_largest(self):
        timeline = self.record()
        self.assertRegex(str(timeline), rf"^peak \d\.\d\d MiB \({timeline.get_peak_total()} bytes\) on cpu")
        self.assertEqual(len(str(timeline).splitlines()), 11)
        self.assertEqual(len(timeline.table(2).splitlines()), 3)

    def test_files_have_the_runs_side_by_side(self):
        none, planned = self.record("none"), self.record("planned", "cpu")
        with tempfile.TemporaryDirectory() as folder:
            page, picture = os.path.join(folder, "step.html"), os.path.join(folder, "step.svg")
            none.save(page, planned, budget="1.5MiB")
            planned.save(picture, budget=4096)
            with open(page, encoding="utf-8") as file:
                data = json.loads(re.search(r'id="recordings">(.*?)</script>', file.read(), re.DOTALL).group(1))
            with open(picture, encoding="utf-8") as file:
                self.assertIn("planned: peak", file.read())
        self.assertEqual([run["name"] for run in data["runs"]], ["none", "planned"])
        self.assertEqual(data["budget"], 3 << 19)

    def test_mistakes_are_exceptions(self):
        timeline = self.record()
        for budget, kind in (("1.5XB", Ebb.Error), (-1, TypeError), (1.5, TypeError), (True, TypeError)):
            with self.assertRaises(kind):
                timeline.save("/tmp/step.html", budget=budget)
        with self.assertRaisesRegex(ValueError, r"must end in \.html or in \.svg"):
            timeline.save("step.png")
        with self.assertRaisesRegex(TypeError, "must be an ebb.MemoryTimeline"):
            timeline.save("step.html", self.model)
        with self.assertRaisesRegex(Ebb.Error, "nowhere"):
            timeline.save("/nowhere/step.html")
        with Ebb.memory_timeline() as running:
            with self.assertRaisesRegex(Ebb.Error, "runs already"):
                running.start(None)
            with self.assertRaisesRegex(Ebb.Error, "still runs"):
                running.save("/tmp/step.html")
        with self.assertRaisesRegex(ValueError, "inside"):
            with Ebb.memory_timeline() as timeline:
                raise ValueError("inside")
        self.assertFalse(timeline.is_running())


class Estimates(TestCase):
    def setUp(self):
        Ebb.manual_seed(1)

    def make(self):
        model = Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Linear(16, 8))
        optimizer = Ebb.AdamW(model, 1e-3)
        x = Ebb.randn(64, 8)

        def step():
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, step

    def test_an_estimate_is_the_measured_peak(self):
        self.assertEqual(Ebb.memory_get_stats(None).get_total(), 0)
        model, step = self.make()
        weight = model[0].weight.numpy().copy()
        estimate = Ebb.estimate_memory(model, step)
        self.assertEqual(model[0].weight.numpy().tolist(), weight.tolist())
        with Ebb.dry_run():
            made_dry = Ebb.estimate_memory(*self.make())
        for _ in range(2):
            Ebb.memory_reset_peaks(None)
            step()
        self.assertEqual(estimate.peak, Ebb.memory_get_stats(None).get_peak_total())
        self.assertEqual(made_dry.peak, estimate.peak)
        self.assertEqual(estimate.timeline.get_peak_total(), estimate.peak)
        self.assertIn("at the peak the largest are", str(estimate))
        self.assertIsNone(estimate.timeline.as_dict()["seconds"])
        seconds = estimate.seconds(5)
        self.assertGreater(seconds, 0)
        self.assertAlmostEqual(estimate.timeline.as_dict()["seconds"], seconds, 6)

    def test_what_a_step_raises_comes_back(self):
        model, step = self.make()

        def fail():
            raise KeyError("no more data")

        with self.assertRaisesRegex(KeyError, "no more data"):
            Ebb.estimate_memory(model, fail)
        with self.assertRaises(Ebb.Error) as raised:
            Ebb.estimate_memory(model, lambda: model(Ebb.zeros(1, 8)).sum().item())
        self.assertEqual(raised.exception.code, Ebb.Error.DRY_RUN)
        with self.assertRaisesRegex(TypeError, "must be a function of one training step"):
            Ebb.estimate_memory(model, 3)
        with self.assertRaisesRegex(TypeError, "must be a module"):
            Ebb.estimate_memory(step, model)
        with self.assertRaisesRegex(ValueError, "inside"):
            with Ebb.dry_run():
                raise ValueError("inside")
        self.assertFalse(Ebb.is_dry_run())


class Plans(TestCase):
    def make(self):
        Ebb.manual_seed(1)
        model = Ebb.Sequential(*(Ebb.TransformerBlock(32, 2, 0.1, True, True) for _ in range(3)))
        optimizer, x = Ebb.AdamW(model, 1e-3), Ebb.randn(4, 32, 32)

        def step():
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
        return model, step

    def train(self, step):
        Ebb.manual_seed(2)
        return [step().item() for _ in range(3)]

    def test_a_plan_keeps_its_budget_and_the_losses(self):
        losses = self.train(self.make()[1])
        model, step = self.make()
        estimate = Ebb.estimate_memory(model, step)
        plan = Ebb.plan_memory(model, step, estimate.peak * 9 // 10)
        self.assertEqual(plan.props.unplanned_peak_bytes, estimate.peak)
        self.assertEqual([row["block"] for row in plan.as_dict()["blocks"]], ["0", "1", "2"])
        self.assertIn("no plan needs less than", str(plan))
        plan.apply()
        planned = Ebb.estimate_memory(model, step)
        self.assertEqual(planned.peak, plan.props.predicted_peak_bytes)
        self.assertLessEqual(planned.peak, estimate.peak * 9 // 10)
        self.assertEqual(self.train(step), losses)

    def test_a_step_that_reads_is_planned_by_real_steps(self):
        model, step = self.make()
        seen = []

        def read():
            seen.append(step().item())

        with self.assertRaisesRegex(Ebb.Error, "are read"):
            Ebb.plan_memory(model, read, "1GiB")
        Ebb.manual_seed(2)
        plan = Ebb.plan_memory(model, read, "1GiB", measured=True)
        self.assertLess(plan.props.least_bytes, plan.props.unplanned_peak_bytes)
        other, plain = self.make()
        Ebb.manual_seed(2)
        self.assertEqual(seen, [plain().item() for _ in seen])

    def test_a_plan_is_kept_in_a_file(self):
        model, step = self.make()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            Ebb.plan_memory(model, step, "1GiB", device="cpu").save(path)
            other = self.make()[0]
            self.assertEqual(Ebb.MemoryPlan.load(other, path).props.budget_bytes, 1 << 30)

    def test_mistakes_are_exceptions(self):
        model, step = self.make()
        with self.assertRaisesRegex(Ebb.Error, "too small: the step needs at least"):
            Ebb.plan_memory(model, step, "10kB")
        with self.assertRaisesRegex(Ebb.Error, "1.5XB"):
            Ebb.plan_memory(model, step, "1.5XB")
        for budget in (-1, 1.5, None):
            with self.assertRaisesRegex(TypeError, r"plan_memory\(\): budget is"):
                Ebb.plan_memory(model, step, budget)
        with self.assertRaises(ZeroDivisionError):
            Ebb.plan_memory(model, lambda: 1 / 0, "1GiB")
        with self.assertRaisesRegex(TypeError, r"plan_memory\(\): model is"):
            Ebb.plan_memory(step, model, "1GiB")


if __name__ == "__main__":
    main()
