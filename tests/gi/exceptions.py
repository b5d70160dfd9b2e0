"""An exception in Python code that C calls comes back out of C as that exception object, and leaves nothing behind."""
import gc
import threading
import weakref

from gi.overrides import _ebb_errors
from support import Ebb, TestCase, main, tensor_bytes
from gi.repository import GLib


class Fails(Ebb.Module):
    """Raises the exception in the given call."""

    def __init__(self, exception, call=1):
        super().__init__()
        self.linear = Ebb.Linear(4, 4)
        self.exception, self.call_number, self.calls = exception, call, 0

    def forward(self, x):
        self.calls += 1
        y = self.linear(x).tanh()
        if self.calls == self.call_number:
            raise self.exception
        return y


class Custom(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


def exceptions():
    return [ValueError("bad\0value é"), ValueError("\ud800"), KeyboardInterrupt(), SystemExit(3), Custom("x"),
            AssertionError(), GLib.Error("mine", "my-domain", 7), RuntimeError("[python exception 1]")]


class Exceptions(TestCase):
    def tearDown(self):
        self.assertEqual(_ebb_errors._kept, {})
        self.assertEqual(_ebb_errors._thread.depth, 0)

    def check(self, function, exception):
        try:
            function()
        except BaseException as caught:
            self.assertIs(caught, exception)
        else:
            self.fail(f"{exception!r} did not come back")

    def test_from_the_first_run(self):
        for exception in exceptions():
            module = Fails(exception)
            self.check(lambda: module(Ebb.ones(2, 4)), exception)

    def test_from_the_first_run_through_wrappers_and_c_containers(self):
        for exception in exceptions():
            inner = Ebb.checkpoint_wrapper(Fails(exception))
            module = Ebb.checkpoint_wrapper(Ebb.Sequential(Ebb.Linear(4, 4), Ebb.Sequential(inner)))
            self.check(lambda: module(Ebb.ones(2, 4)), exception)

    def test_from_the_recompute_inside_backward(self):
        for exception in exceptions():
            module = Ebb.checkpoint_wrapper(Fails(exception, call=2))
            out = Ebb.Sequential(Ebb.Linear(4, 4), module)(Ebb.ones(2, 4))
            self.check(lambda: out.sum().backward(), exception)
            self.assertEqual(module.calls, 2)

    def test_from_a_recompute_inside_a_recompute(self):
        for exception in exceptions():
            inner = Ebb.checkpoint_wrapper(Fails(exception, call=3))
            outer = Ebb.checkpoint_wrapper(Ebb.Sequential(Ebb.Linear(4, 4), inner, Ebb.Tanh()))
            out = outer(Ebb.ones(2, 4))
            self.check(lambda: Ebb.grad(out.sum(), outer.parameters()), exception)

    def test_from_functions_hooks_and_policies(self):
        x = Ebb.ones(2, 4, requires_grad=True)
        for exception in exceptions():
            def fail(*_):
                raise exception

            self.check(lambda: Ebb.checkpoint(fail, x), exception)
            with Ebb.saved_tensor_hooks(fail, lambda kept: kept):
                self.check(lambda: x.exp(), exception)
            with Ebb.saved_tensor_hooks(lambda tensor: tensor, fail):
                y = x.exp()
            self.check(lambda: y.sum().backward(), exception)
            module = Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), policy=fail)
            self.check(lambda: module(x), exception)
            self.check(lambda: Ebb.checkpoint_wrap_each(module, fail), exception)

    def test_from_virtual_functions_that_a_class_overrides_itself(self):
        exception = ValueError("own")

        class Own(Ebb.Module):
            def do_forward1(self, x):
                raise exception

        class Store(Ebb.SavedTensorHooks):
            def do_pack(self, tensor):
                raise exception

        self.check(lambda: Own()(Ebb.ones(1)), exception)
        with Store():
            self.check(lambda: Ebb.ones(1, requires_grad=True).exp(), exception)

    def test_a_policy_that_returns_nonsense_is_an_error(self):
        module = Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), policy=lambda op, ordinal, n_bytes: 1)
        with self.assertRaises(TypeError):
            module(Ebb.ones(2, 4))

    def test_a_forward_may_catch_what_came_from_below(self):
        exception = ValueError("caught")

        class Catches(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.inner = Fails(exception)

            def forward(self, x):
                try:
                    return self.inner(x)
                except ValueError as caught:
                    self.caught = caught
                    return x * 2

        module = Catches()
        self.assertEqual(module(Ebb.ones(1, 4)).tolist(), [[2] * 4])
        self.assertIs(module.caught, exception)

    def test_an_exception_keeps_its_cause_and_its_traceback(self):
        class Chains(Ebb.Module):
            def forward(self, x):
                try:
                    raise KeyError("first")
                except KeyError as error:
                    raise ValueError("second") from error

        try:
            Chains()(Ebb.ones(1))
        except ValueError as caught:
            self.assertIsInstance(caught.__cause__, KeyError)
            names, place = [], caught.__traceback__
            while place:
                names.append(place.tb_frame.f_code.co_name)
                place = place.tb_next
        self.assertEqual(names[-1], "forward")

    def test_c_errors_pass_through_python_and_say_where(self):
        module = Ebb.Sequential(Ebb.Tanh(), Fails(None, call=0))
        with self.assertRaises(GLib.Error) as caught:
            module(Ebb.ones(2, 3))
        self.assertTrue(caught.exception.matches(Ebb.error_quark(), Ebb.Error.SHAPE))
        self.assertTrue(caught.exception.message.startswith("1: "), caught.exception.message)
        self.assertIn("[2, 3]", caught.exception.message)
        self.assertNotIn("python exception", caught.exception.message)

    def test_a_forward_that_returns_nothing_useful_is_no_crash(self):
        class Returns(Ebb.Module):
            def forward(self, x):
                return None

        self.assertIsNone(Returns()(Ebb.ones(1)))
        with self.assertRaises(GLib.Error):
            Ebb.Sequential(Returns(), Ebb.Linear(1, 1))(Ebb.ones(1, 1))

    def test_reading_values_in_a_recompute_is_allowed_after_its_early_stop(self):
        seen = []

        class Reads(Ebb.Module):
            def forward(self, x):
                y = x.exp()
                z = y * 2
                seen.append(z.sum().item())
                return z

        x = Ebb.ones(3, requires_grad=True)
        module = Ebb.checkpoint_wrapper(Reads())
        module(x).sum().backward()
        self.assert_same(x.grad, x.detach().exp() * 2)
        self.assertGreaterEqual(len(seen), 1)

    def test_what_a_forward_makes_of_an_early_stop_ends_the_recompute_alone(self):
        class Complains(Ebb.Module):
            def forward(self, x):
                y = x.exp()
                z = y * 2
                try:
                    z.sum().item()
                except GLib.Error as error:
                    raise (complaint or ValueError)("no value") from error
                return z

        complaint = None
        x = Ebb.ones(3, requires_grad=True)
        module = Ebb.checkpoint_wrapper(Complains())
        module(x).sum().backward()
        self.assert_same(x.grad, x.detach().exp() * 2)
        for complaint in (KeyboardInterrupt, SystemExit):
            with self.assertRaises(complaint):
                module(x).sum().backward()

    def test_it_works_on_any_thread(self):
        found = []

        def work():
            exception = ValueError("here")
            try:
                Ebb.checkpoint_wrapper(Fails(exception))(Ebb.ones(1, 4))
            except ValueError as caught:
                found.append(caught is exception)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [True] * 3)

    def test_nothing_lives_on_in_tracebacks(self):
        before = tensor_bytes()
        gc.disable()  # nothing is to wait for the collector
        self.addCleanup(gc.enable)
        for call in (1, 2):
            exception = ValueError("gone")
            module = Ebb.checkpoint_wrapper(Fails(exception, call))
            gone = [weakref.ref(m) for m in module.modules()]
            try:
                module(Ebb.ones(2, 4)).sum().backward()
            except ValueError:
                pass
            module.exception = None  # which has the frames, which have the module
            del exception, module
            self.assertEqual([ref() for ref in gone], [None] * len(gone))
        self.assertEqual(tensor_bytes(), before)


if __name__ == "__main__":
    main()
