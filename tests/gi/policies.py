"""Checkpoint policies from Python: what they keep, what they may be, and what goes wrong."""
from support import Ebb, TestCase, main

SAVE, RECOMPUTE = Ebb.CheckpointPolicy.MUST_SAVE, Ebb.CheckpointPolicy.MUST_RECOMPUTE


def block(policy, **options):
    Ebb.manual_seed(1)
    return Ebb.checkpoint_wrapper(Ebb.TransformerBlock(width=16, heads=2, dropout=0.1, causal=True), policy=policy,
                                  **options)


def step(module):
    """Gradients, bytes kept between forward and backward, and operations of the recompute."""
    Ebb.manual_seed(2)
    module.zero_grad()
    y = module(Ebb.randn(2, 8, 16))
    stats = Ebb.checkpoint_get_stats(module)
    saved = stats.saved_bytes if stats else None
    y.square().sum().backward()
    stats = Ebb.checkpoint_get_stats(module)
    return ([parameter.grad for parameter in module.parameters()], saved,
            stats.recompute_flop if stats else None)


class Policies(TestCase):
    def test_ready_made_ones_keep_what_they_say(self):
        Ebb.manual_seed(1)
        plain, _, _ = step(Ebb.TransformerBlock(width=16, heads=2, dropout=0.1, causal=True))
        saved, flop = {}, {}
        policies = {"full": None, "selective": "selective", "attention": "attention", "core_attn": "core_attn",
                    "linear": ["linear"], "each": Ebb.save_nth_product(1), "second": Ebb.save_nth_product(2),
                    "all": lambda op, ordinal, n_bytes: SAVE, "none": lambda op, ordinal, n_bytes: RECOMPUTE,
                    "prefer": lambda op, ordinal, n_bytes: Ebb.CheckpointPolicy.PREFER_SAVE,
                    "listed": tuple(Ebb.op_list_names())}
        for name, policy in policies.items():
            module = block(policy, determinism_check="values")
            grads, saved[name], flop[name] = step(module)
            for a, b in zip(grads, plain):
                self.assert_same(a, b)
            self.assertEqual(module.forward_counter, 0)
        unit = 2 * 8 * 16 * 4
        attention = unit + 2 * 2 * 8 * 2 * 4  # its result, and two numbers for the logsumexp of each row and head
        self.assertEqual(saved["full"], unit)
        self.assertEqual(saved["selective"], unit + 3 * unit + 4 * unit)
        self.assertEqual(saved["linear"], saved["selective"] + unit)
        self.assertEqual(saved["second"], 2 * unit)
        self.assertEqual(saved["attention"], saved["all"] - attention)
        self.assertEqual(flop["all"], 0)
        self.assertLess(flop["attention"], flop["full"])
        for same, name in (("core_attn", "attention"), ("each", "linear"), ("none", "full"), ("prefer", "all"),
                           ("listed", "all")):
            self.assertEqual((saved[same], flop[same]), (saved[name], flop[name]), same)

    def test_a_policy_sees_each_op_once(self):
        seen = []

        def watch(op, ordinal, n_bytes):
            seen.append((op, ordinal, n_bytes))
            self.assertFalse(Ebb.is_recomputing())
            return RECOMPUTE

        step(block(watch))
        self.assertEqual([ordinal for _, ordinal, _ in seen], list(range(9)))
        self.assertEqual(seen[1], ("linear", 1, 2 * 8 * 48 * 4))
        self.assertEqual(seen[2][0], "self_attention")
        self.assertLessEqual({op for op, _, _ in seen}, set(Ebb.op_list_names()))

    def test_what_is_no_policy_is_refused(self):
        module = Ebb.Linear(4, 4)
        for policy, error, words in (("selectiv", ValueError, "'selectiv'"), (3, TypeError, "3"),
                                     ("linear", ValueError, "a list of op names"), ([1], TypeError, "1"),
                                     (Ebb.CheckpointPolicy.MUST_SAVE, TypeError, "MUST_SAVE")):
            with self.assertRaisesRegex(error, words):
                Ebb.checkpoint_wrapper(module, policy=policy)
        with self.assertRaisesRegex(Exception, "\"linera\".*ebb_op_list_names"):
            Ebb.checkpoint_wrapper(module, policy=["linear", "linera"])
        with self.assertRaisesRegex(ValueError, "n is 0"):
            Ebb.save_nth_product(0)
        with self.assertRaisesRegex(TypeError, "'2'"):
            Ebb.save_nth_product("2")
        self.assertFalse(Ebb.checkpoint_is_wrapped(module))

    def test_a_policy_that_fails_raises_its_own_exception(self):
        failure = KeyError("no such op")

        def fail(op, ordinal, n_bytes):
            if op == "self_attention" and failing:
                raise failure
            return SAVE

        failing = True
        module = block(fail)
        with self.assertRaises(KeyError) as caught:
            module(Ebb.randn(2, 8, 16))
        self.assertIs(caught.exception, failure)
        self.assertEqual(module.forward_counter, 0)
        failing = False
        for a, b in zip(step(module)[0], step(block(None))[0]):
            self.assert_same(a, b)

    def test_a_policy_returns_members_only(self):
        for nonsense in (None, True, 0, "must_save"):
            module = block(lambda op, ordinal, n_bytes, nonsense=nonsense: nonsense)
            with self.assertRaisesRegex(TypeError, "must be an ebb.CheckpointPolicy"):
                module(Ebb.randn(2, 8, 16))


main()
