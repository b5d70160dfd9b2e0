"""Results that backward rematerializes (of a norm, of a GELU), looked at from Python."""
from gi.repository import GLib

from support import Ebb, TestCase, main, tensor_bytes


class Chain(Ebb.Module):
    def __init__(self, look):
        super().__init__()
        self.norm, self.a, self.b = Ebb.LayerNorm(16), Ebb.Linear(16, 32), Ebb.Linear(32, 16)
        self.look, self.seen = look, []

    def forward(self, x):
        n = self.norm(x)
        self.look(self, n)
        h = Ebb.gelu(self.a(n))
        self.look(self, h)
        return self.b(h)


def never(module, tensor):
    pass


def always(module, tensor):
    module.seen.append(float(tensor.detach().numpy().sum()))


def in_the_forward(module, tensor):
    if not Ebb.is_recomputing():
        module.seen.append(tensor.tolist()[0][0])
        module.seen.append(float(tensor.detach().numpy().sum()))


def at_first(module, tensor):
    if not module.seen:
        module.seen.append(tensor.detach().numpy())


def gradients(look, wrap):
    Ebb.manual_seed(1)
    module = Chain(look)
    wrap(module)
    x = Ebb.randn(4, 16, requires_grad=True)
    module(x).sum().backward()
    return [x.grad] + [parameter.grad for parameter in module.parameters()]


class Rematerialization(TestCase):
    def test_looking_at_them_changes_nothing(self):
        expected = gradients(never, lambda module: None)
        policies = [None, "selective", "attention", ["gelu"], ["gelu", "linear"], ["layer_norm"],
                    ["layer_norm", "linear"]]
        for look in (never, always, in_the_forward, at_first):
            for policy in policies:
                for nested in (False, True):
                    def wrap(module):
                        if nested:
                            Ebb.checkpoint_wrapper(module)
                        Ebb.checkpoint_wrapper(module, policy=policy)

                    for a, b in zip(gradients(look, wrap), expected):
                        self.assert_same(a, b)

    def test_what_they_are_made_of_may_be_shown_and_changed(self):
        a, b = Ebb.Linear(8, 8), Ebb.Linear(8, 8)
        h = a(Ebb.randn(2, 8))
        y = Ebb.gelu(h)
        expected = y.detach().numpy().copy()
        shown = h.detach().numpy()
        loss = b(y).sum()
        shown[:] = 0
        (grad,) = Ebb.grad([loss], [b.weight])
        for row in grad.numpy():
            self.assertEqual(row.tolist(), expected.sum(axis=0).tolist())

    def test_one_that_is_kept_holds_nothing_else_when_backward_is_done(self):
        a = Ebb.Linear(8, 512)
        x = Ebb.randn(512, 8)
        a(x).sum().backward()
        before = tensor_bytes()
        y = Ebb.gelu(a(x))
        y.sum().backward()
        self.assertEqual(tensor_bytes() - before, 512 * 512 * 4)
        self.assertEqual(y.shape, (512, 512))

    def test_a_wrapped_module_leaves_that_of_the_caller_alone(self):
        class Same(Ebb.Module):
            def forward(self, x):
                return x

        a, b, same = Ebb.Linear(8, 512), Ebb.Linear(512, 8), Ebb.checkpoint_wrapper(Same())
        held = []
        for pass_on in (lambda y: y, same):
            y = Ebb.gelu(a(Ebb.randn(512, 8)))
            pass_on(y)
            out = b(y)
            del y
            held.append(Ebb.memory_stats("cpu")["activation"]["current"])
            del out
        self.assertEqual(*held)


class Frames(TestCase):
    def test_training_flags_come_back_though_modules_have_come_and_gone(self):
        def build():
            Ebb.manual_seed(2)
            return Ebb.Sequential(Ebb.Linear(8, 64), Ebb.Dropout(0.5), Ebb.Tanh(), Ebb.Linear(64, 1))

        def step(module, change):
            Ebb.manual_seed(3)
            loss = module(Ebb.ones(4, 8)).sum()
            change(module)
            loss.backward()
            return module[0].weight.grad

        def change(module):
            module.eval()
            module[0].extra = Ebb.Linear(2, 2)  # which nobody calls

        expected = step(build(), lambda module: None)
        module = Ebb.checkpoint_wrapper(build())
        self.assert_same(step(module, change), expected)
        self.assertFalse(module[1].training)

    def test_a_policy_that_fails_fails_the_call_whatever_the_forward_makes_of_it(self):
        class Catches(Ebb.Module):
            def forward(self, x):
                try:
                    return x.exp().tanh()
                except ValueError:
                    return x * 2

        def policy(op, ordinal, n_bytes):
            if op == "tanh":
                raise ValueError("no")
            return Ebb.CheckpointPolicy.MUST_RECOMPUTE

        module = Ebb.checkpoint_wrapper(Catches(), policy=policy)
        with self.assertRaises(GLib.Error) as caught:
            module(Ebb.ones(2, requires_grad=True))
        self.assertIn("went on after its checkpoint policy had failed", caught.exception.message)
        self.assertNotIn("python exception", caught.exception.message)
        self.assertEqual(module.forward_counter, 0)

    def test_an_error_of_a_recompute_after_an_early_stop_was_met_comes_out(self):
        class Tries(Ebb.Module):
            def forward(self, x):
                y = x.exp()
                z = y * 2
                try:
                    z.sum().item()
                except GLib.Error:
                    pass
                if Ebb.is_recomputing():
                    raise FileNotFoundError("gone")
                return z

        module = Ebb.checkpoint_wrapper(Tries())
        with self.assertRaises(FileNotFoundError):
            module(Ebb.ones(2, requires_grad=True)).sum().backward()


if __name__ == "__main__":
    main()
