"""Modules in Python: attributes, classes, containers, state, hooks."""
import functools
import gc
import os
import tempfile
import threading
import weakref

from support import Ebb, Residual, TestCase, main, tensor_bytes
from gi.repository import GLib


class Attributes(TestCase):
    def test_children_parameters_and_buffers_are_read_from_c(self):
        module = Residual(Ebb.Linear(4, 3))
        module.count = Ebb.Buffer(Ebb.zeros(1))
        self.assertEqual([name for name, _ in module.named_parameters()], ["gain", "inner.weight", "inner.bias"])
        self.assertEqual([name for name, _ in module.named_children()], ["inner"])
        self.assertEqual([name for name, _ in module.named_buffers()], ["count"])
        self.assertEqual(list(module.state_dict()), ["gain", "count", "inner.weight", "inner.bias"])
        self.assertIs(module.inner, module.get_child("inner"))
        self.assertEqual(module.inner.weight.shape, (3, 4))
        self.assertEqual(hash(module.gain), hash(module.get_parameter("gain")))
        self.assertNotIn("inner", module.__dict__)
        self.assertIn("gain", dir(module))
        self.assertEqual(module.inner.in_features, 4)

    def test_what_c_registers_is_seen_in_python(self):
        module = Ebb.Module()
        module.register_child("below", Ebb.Linear(2, 2))
        self.assertIsInstance(module.below, Ebb.Linear)
        module.register_child("below", None)
        self.assertFalse(hasattr(module, "below"))

    def test_a_plain_tensor_is_not_registered(self):
        module = Ebb.Module()
        module.plain = Ebb.ones(2)
        self.assertEqual(module.named_parameters() + module.named_buffers(), [])
        self.assertEqual(module.plain.tolist(), [1, 1])

    def test_attributes_are_replaced_and_removed_in_c(self):
        module = Residual(Ebb.Linear(2, 2))
        other = Ebb.Linear(2, 2)
        module.inner = other
        self.assertIs(module.get_child("inner"), other)
        module.inner = None
        self.assertEqual(module.get_children(), [])
        del module.gain
        self.assertEqual(module.get_parameters(True), [])
        module.thing = Ebb.Buffer(Ebb.ones(1))
        module.thing = Ebb.zeros(2)
        self.assertEqual(module.get_buffer("thing").shape, (2,))
        module.thing = Ebb.Linear(1, 1)
        self.assertEqual([name for name, _ in module.named_children()], ["thing"])
        self.assertEqual(module.named_buffers(), [])
        module.plain = 1
        module.plain = Ebb.Linear(1, 1)
        self.assertIsInstance(module.plain, Ebb.Linear)
        self.assertNotIn("plain", module.__dict__)

    def test_a_registered_name_takes_nothing_of_another_kind(self):
        module = Residual(Ebb.Linear(2, 2))
        for name, value in (("inner", 3), ("gain", Ebb.ones(1)), ("gain", "x")):
            with self.assertRaises(TypeError):
                setattr(module, name, value)

    def test_names_that_would_hide_a_method_are_refused(self):
        module = Ebb.Module()
        for name in ("ref", "notify", "chain", "emit", "forward", "call", "props", "qdata", "parameters"):
            for value in (Ebb.Linear(1, 1), Ebb.Parameter(Ebb.ones(1)), 3):
                with self.assertRaises(AttributeError, msg=name):
                    setattr(module, name, value)

    def test_a_cycle_of_children_is_an_error(self):
        outer, inner = Ebb.Module(), Ebb.Module()
        outer.inner = inner
        for module in (outer, inner):
            with self.assertRaises(GLib.Error):
                inner.outer = module
        self.assertEqual(inner.get_children(), [])

    def test_shared_parameters_count_once(self):
        module = Ebb.Module()
        module.a = Ebb.Parameter(Ebb.ones(3))
        module.b = Ebb.Parameter(module.a)
        self.assertEqual(module.count_parameters(), 3)
        self.assertEqual(hash(module.a), hash(module.b))

    def test_a_parameter_may_be_frozen(self):
        module = Ebb.Module()
        module.w = Ebb.Parameter(Ebb.ones(3) * 2, requires_grad=False)
        self.assertFalse(module.w.requires_grad)
        module.requires_grad_()
        self.assertTrue(module.w.requires_grad)
        module.w.requires_grad = False
        self.assertFalse(module.w.requires_grad)


class Classes(TestCase):
    def test_positional_arguments_are_those_of_the_c_constructor(self):
        self.assertEqual(Ebb.Linear(3, 2, bias=False).named_parameters()[0][1].shape, (2, 3))
        self.assertEqual(len(Ebb.Linear(3, 2, False).parameters()), 1)
        self.assertEqual(Ebb.Dropout(0.25).props.p, 0.25)
        self.assertEqual(Ebb.Embedding(5, 3).weight.shape, (5, 3))
        self.assertEqual(Ebb.LayerNorm(7)(Ebb.randn(2, 7)).shape, (2, 7))
        self.assertEqual(Ebb.BatchNorm1d(4)(Ebb.randn(3, 4)).shape, (3, 4))
        self.assertEqual(Ebb.Generator(9).get_seed(), 9)
        self.assertEqual(Ebb.TransformerBlock(8, 2)(Ebb.randn(1, 3, 8)).shape, (1, 3, 8))

    def test_bad_constructor_arguments_are_errors(self):
        for make, error in ((lambda: Ebb.Linear(1, 2, True, 4), TypeError),
                            (lambda: Ebb.Linear(1, in_features=2), TypeError),
                            (lambda: Ebb.Linear(0, 2), GLib.Error), (lambda: Ebb.Linear(nothing=1), TypeError)):
            with self.assertRaises(error):
                make()

    def test_super_forward_is_the_one_of_c(self):
        class Scaled(Ebb.Linear):
            def forward(self, x):
                return super().forward(x) * 2

        class Twice(Scaled):
            def forward(self, x):
                return super().forward(x) * 2

        plain, scaled, twice = Ebb.Linear(3, 2), Scaled(3, 2), Twice(3, 2)
        for module in (scaled, twice):
            module.load_state_dict(plain.state_dict())
        x = Ebb.randn(4, 3)
        self.assert_same(scaled(x), plain(x) * 2)
        self.assert_same(twice(x), plain(x) * 2 * 2)
        self.assert_same(Ebb.Sequential(scaled)(x), plain(x) * 2)
        self.assert_same(plain(x), plain(x))

    def test_a_class_without_forward_keeps_that_of_c(self):
        class Named(Ebb.Linear):
            pass

        self.assertEqual(Named(3, 2)(Ebb.randn(4, 3)).shape, (4, 2))
        with self.assertRaises(GLib.Error):
            Ebb.Module()(Ebb.ones(1))

    def test_containers_hold_modules_in_order(self):
        a, b = Ebb.Linear(3, 4), Ebb.Tanh()
        seq = Ebb.Sequential(a, b)
        self.assertEqual([name for name, _ in seq.named_children()], ["0", "1"])
        self.assertEqual(len(seq), 2)
        self.assertIs(seq[0], a)
        self.assertIs(seq[-1], b)
        self.assertEqual(list(seq), [a, b])
        with self.assertRaises(IndexError):
            seq[2]
        x = Ebb.randn(2, 3)
        self.assert_same(seq(x), Ebb.tanh(a(x)))
        modules = Ebb.ModuleList([a, b])
        self.assertEqual(list(modules[:1]), [a])
        self.assertEqual(len(modules.append(Ebb.Tanh())), 3)

    def test_training_mode_reaches_below(self):
        seq = Ebb.Sequential(Ebb.Dropout(0.5), Ebb.Sequential(Ebb.Dropout(0.5)))
        self.assertTrue(seq.training)
        self.assertIs(seq.eval(), seq)
        self.assertFalse(seq[1][0].training)
        x = Ebb.ones(50)
        self.assert_same(seq(x), x)
        self.assertLess((seq.train()(x) > 0).float().sum().item(), 50)

    def test_modules_move_to_devices_and_types_by_name(self):
        module = Ebb.Linear(2, 2)
        self.assertIs(module.to("cpu", "bf16"), module)
        self.assertEqual(module.weight.dtype, Ebb.DType.BF16)
        self.assertEqual(module.float().weight.dtype, Ebb.float32)
        self.assertEqual(module.weight.device, "cpu")
        with self.assertRaises(GLib.Error):
            module.to("nowhere")


class HookResults(TestCase):
    def test_what_a_hook_returns_is_taken(self):
        module = Ebb.Sequential(Ebb.Linear(2, 2), Ebb.ReLU())
        x = Ebb.randn(3, 2)
        module[0].register_forward_pre_hook(lambda _module, args: args[0] * 2)
        module[0].register_forward_pre_hook(lambda _module, args: (args[0] + 1,))
        module[0].register_forward_hook(lambda _module, _args, _result: None)
        handle = module[0].register_forward_hook(lambda _module, args, result: result + args[0])
        module[0].register_forward_hook(lambda _module, _args, _result: None)
        y = x * 2 + 1
        expected = (Ebb.linear(y, module[0].weight, module[0].bias) + y).relu()
        self.assert_same(module(x), expected)
        Ebb.checkpoint_wrapper(module)
        gradients = []
        for run in (lambda: module(x), lambda: (Ebb.linear(y, module[0].weight, module[0].bias) + y).relu()):
            module.zero_grad()
            run().sum().backward()
            gradients.append(module[0].weight.grad.tolist())
        self.assertEqual(*gradients)
        handle.remove()
        self.assert_same(module(x), Ebb.linear(y, module[0].weight, module[0].bias).relu())

    def test_a_hook_may_return_anything(self):
        module = Residual(Ebb.Linear(2, 2))
        module.register_forward_hook(lambda _module, _args, result: {"y": result[0], "more": result[1]["shape"]})
        self.assertEqual(module(Ebb.ones(1, 2), mask=None)["more"], [1, 2])

    def test_a_parameter_says_that_it_is_one_and_a_tensor_that_it_is_a_leaf(self):
        layer, x = Ebb.Linear(2, 2), Ebb.ones(2)
        self.assertTrue(isinstance(layer.weight, Ebb.Parameter) and isinstance(Ebb.Parameter(x), Ebb.Parameter))
        self.assertFalse(isinstance(x, Ebb.Parameter) or isinstance(layer.weight * 1, Ebb.Parameter))
        self.assertTrue(isinstance(Ebb.Buffer(x), Ebb.Buffer) and not isinstance(x, Ebb.Buffer))
        layer.count = Ebb.Buffer(x)
        self.assertTrue(isinstance(layer.count, Ebb.Buffer))
        self.assertFalse(isinstance(layer.weight, Ebb.Buffer) or isinstance(layer.count * 1, Ebb.Buffer)
                         or isinstance(layer.count, Ebb.Parameter))
        other = Ebb.Linear(2, 2)
        other.register_buffer("count", layer.count)           # both modules have it
        self.assertEqual(other.count.tolist(), [1, 1])
        self.assertIs(layer.weight.is_leaf, True)
        self.assertIs((layer.weight * 1).is_leaf, False)
        layer.bias = layer.weight[0].detach().requires_grad_()


class State(TestCase):
    def test_state_dicts_load_strictly(self):
        a, b = Residual(Ebb.Linear(3, 3)), Residual(Ebb.Linear(3, 3))
        b.load_state_dict(a.state_dict())
        self.assert_same(a.inner.weight, b.inner.weight)
        state = a.state_dict()
        del state["gain"]
        with self.assertRaises(GLib.Error) as caught:
            b.load_state_dict(state)
        self.assertIn("gain", caught.exception.message)
        self.assertEqual(b.load_state_dict(state, strict=False), (["gain"], []))
        self.assertEqual(b.load_state_dict({**state, "more": a.gain}, strict=False).unexpected_keys, ["more"])
        self.assertEqual(b.load_state_dict(a.state_dict()), ([], []))

    def test_a_prefix_of_all_names_is_named(self):
        module = Residual(Ebb.Linear(3, 3))
        state = {f"module.{name}": Ebb.ones(*value.shape) for name, value in module.state_dict().items()}
        words = "state's names begin with \"module.\" and the module's do not: remove this prefix"
        with self.assertWarnsRegex(UserWarning, f"3 names are missing and 3 are unexpected: the {words}"):
            missing, unexpected = module.load_state_dict(state, strict=False)
        self.assertEqual(sorted(missing), sorted(module.state_dict()))
        self.assertEqual(unexpected, sorted(state))
        with self.assertRaisesRegex(Ebb.Error, words):
            module.load_state_dict(state)
        with self.assertRaisesRegex(Ebb.Error, "module's names begin with \"inner.\""):
            module.load_state_dict(module.inner.state_dict())

    def test_the_weights_of_a_gpt2_say_what_model_they_are(self):
        config = Ebb.GptConfig.new_preset("tiny")
        for name, value in ("layers", 2), ("width", 32), ("heads", 8), ("tied", False), ("norm_eps", 1e-6):
            setattr(config, name, value)
        model = Ebb.Gpt(config).eval()
        tokens = Ebb.randint(0, 256, 2, 8)
        with tempfile.TemporaryDirectory() as folder:
            path, beside = (os.path.join(folder, name) for name in ("model.safetensors", "config.json"))
            Ebb.save_safetensors(path, model.to_gpt2_state(), config.to_gpt2_metadata())
            state, metadata = Ebb.load_safetensors_full(path)
            again = Ebb.GptConfig.new_from_gpt2(state, metadata, None)
            with open(beside, "w", encoding="utf-8") as file:
                file.write('{"n_head": 8, "layer_norm_epsilon": 1e-06, "tie_word_embeddings": false}')
            published = Ebb.GptConfig.new_from_gpt2(state, None, beside)
        for one in again, published:
            self.assertEqual((one.heads, one.tied, one.norm_eps), (8, False, 1e-6))
            loaded = Ebb.Gpt(one).eval()
            loaded.load_gpt2(state)
            self.assertEqual(loaded(tokens).tolist(), model(tokens).tolist())
        again.tied = True
        with self.assertRaisesRegex(GLib.Error, "lm_head.weight differs from wte.weight"):
            Ebb.Gpt(again).load_gpt2(state)

    def test_safetensors_hold_a_state_dict(self):
        module = Residual(Ebb.Linear(3, 3))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state.safetensors")
            Ebb.save_safetensors(path, module.state_dict(), None)
            state = Ebb.load_safetensors(path)
        self.assertEqual(set(state), set(module.state_dict()))
        self.assert_same(state["inner.weight"], module.inner.weight)


class Hooks(TestCase):
    def test_forward_hooks_see_calls_until_they_are_removed(self):
        module, seen = Ebb.Linear(2, 2), []
        before = module.register_forward_pre_hook(lambda m, args: seen.append(("before", m is module, len(args))))
        after = module.register_forward_hook(lambda m, args, result: seen.append(("after", result.shape)))
        module(Ebb.ones(1, 2))
        self.assertEqual(seen, [("before", True, 1), ("after", (1, 2))])
        before.remove()
        after.remove()
        module(Ebb.ones(1, 2))
        self.assertEqual(len(seen), 2)

    def test_a_hook_that_raises_makes_the_call_fail(self):
        module, error = Ebb.Linear(2, 2), ValueError("no")

        def refuse(module, args):
            raise error

        module.register_forward_pre_hook(refuse)
        with self.assertRaises(ValueError) as caught:
            Ebb.Sequential(module)(Ebb.ones(1, 2))
        self.assertIs(caught.exception, error)

    def test_hooks_that_refer_to_their_module_do_not_keep_it(self):
        module = Residual(Ebb.Linear(2, 2))
        module.register_forward_hook(lambda m, args, result: module)
        module(Ebb.ones(1, 2))
        gone = weakref.ref(module)
        del module
        gc.collect()
        self.assertIsNone(gone())

    def test_saved_tensor_hooks_see_what_backward_needs(self):
        x = Ebb.ones(3, requires_grad=True)
        packed, unpacked = [], []

        def pack(tensor):
            packed.append(tensor.shape)
            return {"shape": tensor.shape, "values": tensor.tolist()}

        def unpack(kept):
            unpacked.append(kept["shape"])
            return Ebb.tensor(kept["values"])

        with Ebb.saved_tensor_hooks(pack, unpack):
            y = (x * 2).exp()
        (x * 3).exp()
        y.sum().backward()
        self.assertEqual(packed, unpacked)
        self.assertEqual(packed[-1], (3,))
        self.assert_same(x.grad, (Ebb.ones(3) * 2).exp() * 2)


class Depth(TestCase):
    """What is nested too deep is an exception that says how deep, on a thread's stack as well."""

    def on_a_thread(self, function):
        failures = []

        def run():
            try:
                function()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for failure in failures:
            raise failure

    def test_a_module_that_is_wrapped_many_times(self):
        def run():
            module = Ebb.Linear(2, 2)
            for _ in range(5000):
                Ebb.checkpoint_wrapper(module)
            with self.assertRaisesRegex(GLib.Error, "Linear: calls .* nested 1001 deep; the limit is 1000"):
                module(Ebb.ones(1, 2))
        self.on_a_thread(run)

    def test_nested_modules(self):
        def run(wrap):
            module = Ebb.Linear(2, 2)
            with self.assertRaisesRegex(GLib.Error, "nested 501 deep; at most 500"):
                for _ in range(5000):
                    outer = Ebb.Sequential(module)
                    module = Ebb.checkpoint_wrapper(outer) if wrap else outer
            module(Ebb.ones(1, 2)).sum().backward()
            self.assertEqual(len(list(module.parameters())), 2)
        for wrap in (False, True):
            self.on_a_thread(lambda: run(wrap))

    def test_nested_modules_of_a_class_in_python(self):
        def run():
            module = Residual(Ebb.Linear(2, 2))
            with self.assertRaisesRegex(GLib.Error, "nested 501 deep"):
                for _ in range(5000):
                    module = Residual(module)
        self.on_a_thread(run)

    def test_nested_values(self):
        def run():
            value = Ebb.ones(2)
            for _ in range(100):
                value = [value]
            self.assertEqual(len(Echo()(value)), 1)
            for _ in range(5000):
                value = [value]
            with self.assertRaises((GLib.Error, RecursionError)):
                Echo()(value)
        self.on_a_thread(run)


class Echo(Ebb.Module):
    def forward(self, value):
        return value


class Lifetimes(TestCase):
    def test_modules_and_their_memory_go_when_dropped(self):
        before = tensor_bytes()
        module = Ebb.checkpoint_wrapper(Residual(Ebb.Sequential(Ebb.Linear(8, 8), Ebb.Tanh())))
        gone = [weakref.ref(m) for m in module.modules()]
        out, info = module(Ebb.randn(2, 8))
        del out, info, module
        gc.collect()
        self.assertEqual([ref() for ref in gone], [None] * len(gone))
        self.assertEqual(tensor_bytes(), before)

    def make_with_cycle(self, kind):
        model = Ebb.Sequential(Ebb.Linear(8, 64), Residual(Ebb.Linear(64, 64)))
        inner = model[1].inner
        if kind == "attribute":
            inner.note = [lambda: model]
        else:
            (inner.register_forward_pre_hook if kind == "pre-hook" else inner.register_forward_hook)(
                lambda *_: None if model.training else model)
        return Ebb.checkpoint_wrapper(model) if kind == "wrapped" else model

    def test_hooks_and_attributes_that_refer_to_their_model_do_not_keep_it(self):
        before = tensor_bytes()
        for kind in ("hook", "pre-hook", "attribute", "wrapped"):
            for _ in range(3):
                self.make_with_cycle(kind)(Ebb.randn(2, 8))[0].sum().backward()
            self.assertGreater(Ebb.memory_stats("cpu")["total"]["current"], before)
            self.assertEqual(tensor_bytes(), before, kind)

    def test_models_that_something_holds_keep_their_hooks(self):
        def run_later(model):
            yield
            yield model(Ebb.randn(2, 8))

        def wait(model, started, go_on, found):
            started.set()
            go_on.wait()
            found.append(len(model[1].inner.__dict__["_hooks"]))

        local = self.make_with_cycle("hook")
        inside = self.make_with_cycle("hook")[1].inner
        later = run_later(self.make_with_cycle("hook"))
        next(later)
        partial = functools.partial(self.make_with_cycle("hook"))
        other = Ebb.Sequential(self.make_with_cycle("hook")[1])
        started, go_on, found = threading.Event(), threading.Event(), []
        thread = threading.Thread(target=wait, args=(self.make_with_cycle("hook"), started, go_on, found))
        thread.start()
        started.wait()
        gc.collect()
        go_on.set()
        thread.join()
        self.assertEqual(found, [1])
        for inner in local[1].inner, inside, partial.func[1].inner, other[0].inner:
            self.assertEqual(len(inner.__dict__["_hooks"]), 1)
        self.assertEqual(next(later)[0].shape, (2, 64))

    def test_back_references_by_weakref_do_not_leak(self):
        class Child(Ebb.Module):
            def __init__(self, parent):
                super().__init__()
                self.parent = weakref.ref(parent)

        parent = Ebb.Module()
        parent.child = Child(parent)
        self.assertIs(parent.child.parent(), parent)
        gone = [weakref.ref(parent), weakref.ref(parent.child)]
        del parent
        gc.collect()
        self.assertEqual([ref() for ref in gone], [None, None])


if __name__ == "__main__":
    main()
