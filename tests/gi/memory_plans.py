"""Plans for a budget from Python: they keep the budget and the bits."""
import os
import tempfile

from support import Ebb, TestCase, main


class OwnBlock(Ebb.Module, Ebb.Block):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = Ebb.Linear(width, 4 * width), Ebb.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).tanh())

    def do_list_parallel_rules(self):
        return ["up: column", "down: row"]


class OtherBlock(OwnBlock, Ebb.Block):
    """The interface may be named again."""


class Plans(TestCase):
    def make(self):
        """A model, its optimizer, and its step, which returns the loss."""
        Ebb.manual_seed(1)
        model = Ebb.Gpt(Ebb.GptConfig(layers=4, width=32, heads=2, context=32, vocab=50, dropout=0.1))
        optimizer = Ebb.AdamW(model, 1e-3)

        def train():
            tokens = Ebb.zeros(4, 32, dtype="int64")
            loss = model.loss(tokens, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, optimizer, train

    def measure(self, train, before):
        """Losses of four steps, and the peak of the later ones."""
        losses = [train().item()]
        Ebb.memory_reset_peaks(None)
        losses += [train().item() for _ in range(3)]
        return losses, Ebb.memory_get_stats(None).get_peak_total() - before

    def test_a_plan_keeps_the_budget_and_the_bits(self):
        before = Ebb.memory_get_stats(None).get_total()
        model, optimizer, train = self.make()
        peak = Ebb.estimate_memory(model, train).peak
        least = Ebb.plan_memory(model, train, peak).props.least_bytes
        losses, _ = self.measure(train, before)
        del model, optimizer, train
        for budget in peak, (peak + least) // 2, least:
            model, optimizer, train = self.make()
            plan = Ebb.plan_memory(model, train, budget)
            self.assertLessEqual(plan.props.predicted_peak_bytes, budget)
            plan.apply()
            planned, used = self.measure(train, before)
            self.assertEqual(planned, losses)
            self.assertLessEqual(used, budget)
            self.assertEqual(len(plan.as_dict()["blocks"]), 4)
            self.assertIn("no plan needs less than", str(plan))
            del model, optimizer, train, plan

    def test_blocks_may_move_what_they_keep_to_a_store(self):
        model, _, train = self.make()
        plan = Ebb.plan_memory(model, train, "1GiB", store=Ebb.DiskStore("/tmp"))
        self.assertEqual(plan.props.predicted_peak_bytes, Ebb.estimate_memory(model, train).peak)
        with self.assertRaisesRegex(ValueError, "measured=True and a store"):
            Ebb.plan_memory(model, train, "1GiB", measured=True, store=Ebb.HostStore())
        with self.assertRaisesRegex(Ebb.Error, "to a host store or a disk store, not to an EbbKeepStore"):
            Ebb.plan_memory(model, train, "1GiB", store=Ebb.KeepStore())

    def test_blocks_of_a_class_of_ones_own_are_planned_and_wrapped(self):
        def make():
            Ebb.manual_seed(2)
            model = Ebb.Sequential(Ebb.Sequential(*(Ebb.Linear(16, 16) for _ in range(5))),
                                   Ebb.Sequential(OwnBlock(16), OtherBlock(16), Ebb.TransformerBlock(16, 2)))
            return model, lambda: model(Ebb.ones(2, 8, 16)).sum().backward()

        model, train = make()
        self.assertTrue(issubclass(Ebb.TransformerBlock, Ebb.Block))
        self.assertEqual([isinstance(module, Ebb.Block) for module in model[1]], [True] * 3)
        least = Ebb.plan_memory(model, train, "1GiB").props.least_bytes
        plan = Ebb.plan_memory(model, train, least)
        self.assertEqual([block["block"] for block in plan.as_dict()["blocks"]], ["1.0", "1.1", "1.2"])
        plan.apply()
        train()
        planned = [parameter.grad for parameter in model.parameters()]
        for which in Ebb.Block, (Ebb.Block, Ebb.Embedding), lambda module: isinstance(module, Ebb.Block):
            model, train = make()
            Ebb.checkpoint_wrap_each(model, which)
            self.assertEqual([module for module in model.modules() if Ebb.checkpoint_is_wrapped(module)],
                             list(model[1]))
            train()
            for parameter, grad in zip(model.parameters(), planned):
                self.assert_same(parameter.grad, grad)
        model, _ = make()
        model.gradient_checkpointing_enable()
        self.assertTrue(all(map(Ebb.checkpoint_is_wrapped, model[1])))
        self.assertEqual(model[1][0].list_parallel_rules(), ["up: column", "down: row"])
        with self.assertRaisesRegex(TypeError, r"class Turned: .*\(ebb.Module, ebb.Block\)"):
            class Turned(Ebb.Block, Ebb.Module):
                pass
        self.assertIn("1.0.up: column\n1.0.down: row\n", Ebb.ParallelPlan.new_for(model).to_string())

    def test_planning_changes_nothing(self):
        model, optimizer, train = self.make()
        losses, _ = self.measure(train, 0)
        del model, optimizer, train
        model, optimizer, train = self.make()
        planned = []
        for _ in range(4):
            Ebb.plan_memory(model, train, "1GiB")
            with self.assertRaises(Ebb.Error):
                Ebb.plan_memory(model, train, 1000)
            Ebb.estimate_memory(model, train)
            self.assertEqual(optimizer.get_n_steps(), len(planned))
            planned.append(train().item())
        self.assertEqual(planned, losses)

    def test_a_plan_of_a_dry_run_is_for_the_real_model(self):
        with Ebb.dry_run():
            model, optimizer, train = self.make()
            plan = Ebb.plan_memory(model, train, "1GiB")
            json = plan.to_json()
        model, optimizer, train = self.make()
        again = Ebb.MemoryPlan.new_from_json(model, json)
        again.apply()
        train()
        again.unapply()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            again.save(path)
            self.assertEqual(Ebb.MemoryPlan.load(model, path).as_dict(), plan.as_dict())

    def test_a_step_that_lacks_memory_runs_again(self):
        before = Ebb.memory_get_stats(None).get_total()
        model, optimizer, train = self.make()
        losses, _ = self.measure(train, before)
        del model, optimizer, train
        model, optimizer, train = self.make()
        training = Ebb.TrainingState(module=model, optimizer=optimizer)
        plan = Ebb.plan_memory(model, train, "1GiB")
        plan.apply()
        planned = []
        Ebb.memory_set_limit(None, before + plan.props.predicted_peak_bytes - 1024)
        try:
            for _ in range(4):
                plan.run_step(training, lambda: planned.append(train().item()))
        finally:
            Ebb.memory_set_limit(None, 0)
        self.assertEqual((planned, plan.props.n_lowered, optimizer.get_n_steps()), (losses, 1, 4))
        with self.assertRaisesRegex(TypeError, "training is None: it must be an ebb.TrainingState"):
            plan.run_step(None, train)
        with self.assertRaisesRegex(Ebb.Error, "no plan needs less than"):
            while True:
                plan.lower()

    def test_the_second_step_is_checked(self):
        model, optimizer, train = self.make()
        training = Ebb.TrainingState(module=model, optimizer=optimizer)
        plan = Ebb.plan_memory(model, train, "1GiB")
        plan.apply()
        for _ in range(2):
            plan.run_step(training, train)
        with self.assertRaisesRegex(TypeError, "check_step.*must be a function of one training step"):
            plan.check_step(None)
        plan.check_step(train)
        with self.assertRaisesRegex(Ebb.Error, "there is no step to check"):
            plan.check_step(train)

    def test_ranks_have_one_plan(self):
        texts = [None, None]

        def plan(group):
            model, optimizer, train = self.make()
            Ebb.fully_shard(model, group)
            least = Ebb.plan_memory(model, train, "1GiB", group=group).props.least_bytes
            texts[group.props.rank] = str(Ebb.plan_memory(model, train, least, group=group))
            with self.assertRaisesRegex(Ebb.Error, "too small: the step needs at least"):
                Ebb.plan_memory(model, train, least - 1, group=group)
            with self.assertRaisesRegex(ValueError, "measured=True and a group"):
                Ebb.plan_memory(model, train, least, group=group, measured=True)

        Ebb.run_ranks(2, plan)
        self.assertEqual(texts[0], texts[1])
        self.assertIn("no plan needs less than", texts[0])

    def test_a_model_on_an_accelerator_is_planned_there(self):
        model = Ebb.Linear(4, 4).to("sim")
        optimizer = Ebb.AdamW(model, 1e-3)
        x = Ebb.ones(2, 4).to("sim")

        def step():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        self.assertEqual(Ebb.estimate_memory(model, step).peak, Ebb.estimate_memory(model, step, "sim").peak)
        plan = Ebb.plan_memory(Ebb.Sequential(model), step, "1GiB")
        self.assertEqual(plan.props.predicted_peak_bytes, Ebb.estimate_memory(model, step).peak)

    def test_mistakes(self):
        model, optimizer, train = self.make()
        with self.assertRaisesRegex(Ebb.Error, "too small: the step needs at least") as raised:
            Ebb.plan_memory(model, train, "10KiB")
        self.assertEqual(raised.exception.code, Ebb.Error.NO_MEMORY)
        for budget, message in (("10X", "is not a size"), (None, "a number of bytes"), (True, "a number of bytes")):
            with self.assertRaisesRegex((Ebb.Error, TypeError), message):
                Ebb.plan_memory(model, train, budget)
        with self.assertRaisesRegex(TypeError, "plan_memory.*must be a function of one training step"):
            Ebb.plan_memory(model, None, 5)


if __name__ == "__main__":
    main()
