"""A mistake in a call of the checkpoint functions is told at the call, with the name, the value and what is right."""
import inspect
import pathlib
import re
import tempfile
import warnings

import numpy as np
from gi.repository import GLib
from support import Ebb, TestCase, main

OPTIONS = ["offload_to_cpu", "preserve_rng_state", "determinism_check", "early_stop", "store", "retain_recomputed",
           "synchronize", "profile", "policy", "on_recompute", "options"]
FAIRSCALE = ["offload_to_cpu", "maintain_forward_counter"]  # by position, as there


def two_layers():
    return Ebb.Sequential(Ebb.Linear(4, 4), Ebb.Linear(4, 4))


class Options(TestCase):
    def test_options_have_names(self):
        for values in (("selective",), (Ebb.CheckpointOptions.new(),), (True, 1), (True, False, True)):
            module = Ebb.Linear(4, 4)
            with self.assertRaisesRegex(TypeError, "offload_to_cpu|maintain_forward_counter|checkpoint_wrapper"):
                Ebb.checkpoint_wrapper(module, *values)
            self.assertFalse(Ebb.checkpoint_is_wrapped(module))
        self.assertEqual(list(inspect.signature(Ebb.checkpoint_wrapper).parameters),
                         ["module", *FAIRSCALE, *(name for name in OPTIONS if name not in FAIRSCALE)])

    def test_fairscales_arguments_go_by_position_too(self):
        x = Ebb.randn(2, 4)
        for arguments, keywords in (((True,), {}), ((True, True), {}), ((), {"maintain_forward_counter": True}),
                                    ((), {"offload_to_cpu": True, "maintain_forward_counter": False})):
            module = Ebb.checkpoint_wrapper(Ebb.Sequential(Ebb.Linear(4, 4), Ebb.Tanh()), *arguments, **keywords)
            self.assertTrue(Ebb.checkpoint_is_wrapped(module))
            loss = module(x).sum()
            self.assertEqual(module[0].forward_counter, 1)
            loss.backward()
            self.assertEqual(module[0].forward_counter, 0)

    def test_an_unknown_option_is_named_with_the_function_and_all_options(self):
        stack = two_layers()
        calls = {"checkpoint_wrapper": lambda **o: Ebb.checkpoint_wrapper(stack, **o),
                 "checkpoint_wrap_each": lambda **o: Ebb.checkpoint_wrap_each(stack, Ebb.Linear, **o),
                 "checkpoint_wrap_uniform": lambda **o: Ebb.checkpoint_wrap_uniform(stack, 1, **o),
                 "checkpoint_wrap_block": lambda **o: Ebb.checkpoint_wrap_block(stack, 1, **o),
                 "checkpoint_with": Ebb.checkpoint_with,
                 "checkpoint_sequential": lambda **o: Ebb.checkpoint_sequential(stack, 1, Ebb.ones(1, 4), **o)}
        for name, call in calls.items():
            with self.assertRaisesRegex(TypeError, rf"{name}\(\) has no option 'use_reentrant'.*{', '.join(OPTIONS)}"):
                call(use_reentrant=False)
        self.assertFalse(any(map(Ebb.checkpoint_is_wrapped, stack.modules())))

    def test_switches_are_bools(self):
        module = Ebb.Linear(4, 4)
        for name in ("offload_to_cpu", "preserve_rng_state", "early_stop", "retain_recomputed", "synchronize",
                     "profile"):
            for value in ("no", 1, None, [True]):
                with self.assertRaises(TypeError) as caught:
                    Ebb.checkpoint_wrapper(module, **{name: value})
                self.assertEqual(str(caught.exception),
                                 f"checkpoint_wrapper(): {name} is {value!r}: must be True or False")
            for value in (False, True):
                Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), **{name: value})
        self.assertFalse(Ebb.checkpoint_is_wrapped(module))

    def test_determinism_check_is_one_of_three(self):
        for value in ("none", "default", "values", None, *(Ebb.DeterminismCheck.NONE, Ebb.DeterminismCheck.VALUES)):
            Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), determinism_check=value)
        for value, error in (("value", ValueError), ("", ValueError), (True, TypeError), (7, TypeError)):
            with self.assertRaises(error) as caught:
                Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), determinism_check=value)
            self.assertEqual(str(caught.exception),
                             f"checkpoint_wrapper(): determinism_check is {value!r}: must be one of 'none', "
                             "'default', 'values'")

    def test_a_store_is_an_object_that_stores(self):
        for value in ("/tmp", Ebb.HostStore, 3):
            with self.assertRaisesRegex(TypeError, r"store: .*: must be .*ebb.HostStore\(\), ebb.DiskStore\("):
                Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), store=value)
        for store in (Ebb.HostStore(), Ebb.DiskStore("/tmp"), Ebb.saved_tensor_hooks(lambda t: t, lambda t: t)):
            Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), store=store)
            with self.assertRaisesRegex(ValueError, "store and offload_to_cpu=True"):
                Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), store=store, offload_to_cpu=True)

    def test_functions_are_functions(self):
        with self.assertRaisesRegex(TypeError, r"write save_nth_product\(2\)"):
            Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), policy=Ebb.save_nth_product)
        with self.assertRaisesRegex(TypeError, r"on_recompute: 'log': must be a function of \(module, phase\)"):
            Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), on_recompute="log")
        module = Ebb.checkpoint_wrapper(Ebb.Linear(4, 4), policy=lambda op, ordinal, n_bytes: "save")
        with self.assertRaisesRegex(TypeError, "'save' for 'linear'.*MUST_SAVE, PREFER_SAVE, PREFER_RECOMPUTE or "
                                               "MUST_RECOMPUTE"):
            module(Ebb.ones(1, 4))


class Calls(TestCase):
    def test_wrap_each_takes_a_type_or_types_or_a_function(self):
        for which, expected in ((Ebb.Linear, [True, False, False]), ((Ebb.Linear, Ebb.Tanh), [True, True, False]),
                                (lambda module: isinstance(module, Ebb.Dropout), [False, False, True])):
            root = Ebb.Sequential(Ebb.Linear(4, 4), Ebb.Tanh(), Ebb.Dropout(0.5))
            self.assertIs(Ebb.checkpoint_wrap_each(root, which), root)
            self.assertEqual([Ebb.checkpoint_is_wrapped(module) for module in root], expected)
        for which in ("Linear", None, 3, int, (), (Ebb.Linear, int), [Ebb.Linear], Ebb.Linear(4, 4)):
            with self.assertRaisesRegex(TypeError, "must be a type of modules, a tuple of such types, or a function"):
                Ebb.checkpoint_wrap_each(root, which)
        with self.assertRaisesRegex(TypeError, "root is 3: it must be an ebb.Module"):
            Ebb.checkpoint_wrap_each(3, Ebb.Linear)
        with self.assertRaisesRegex(TypeError, r"^.{,120}\.\.\.: it must be an ebb.Module$"):
            Ebb.checkpoint_wrapper(Ebb.ones(50, 50))  # as much of it as a line has room for

    def test_numbers_of_layers_are_named(self):
        stack, x = two_layers(), Ebb.ones(1, 4)
        for name, call in (("n_layers_per_chunk", Ebb.checkpoint_wrap_uniform), ("n_layers", Ebb.checkpoint_wrap_block),
                           ("n_segments", lambda stack, n: Ebb.checkpoint_sequential(stack, n, x))):
            for n, error in (("2", TypeError), (1.5, TypeError), (True, TypeError), (None, TypeError),
                             (-1, ValueError), (2**32, ValueError), (2**80, ValueError)):
                with self.assertRaises(error) as caught:
                    call(stack, n)
                self.assertIn(f"{name} is {n!r}: it must be an int from 1 to 2", str(caught.exception))
        self.assertFalse(any(map(Ebb.checkpoint_is_wrapped, stack.modules())))

    def test_a_list_is_no_sequence_of_modules(self):
        for modules in ([Ebb.Linear(4, 4)], (Ebb.Linear(4, 4),)):
            for call in (lambda: Ebb.checkpoint_sequential(modules, 1, Ebb.ones(1, 4)),
                         lambda: Ebb.checkpoint_wrap_uniform(modules, 1), lambda: Ebb.checkpoint_wrapper(modules)):
                with self.assertRaisesRegex(TypeError, r"write ebb.Sequential\(\*modules\)"):
                    call()

    def test_what_is_called_can_be_called(self):
        x = Ebb.ones(2)
        for call in (Ebb.checkpoint, Ebb.checkpoint_with()):
            with self.assertRaisesRegex(TypeError, r"checkpoint\(\): 3: must be a function"):
                call(3, x)
        for pair, words in (((3, 4), "pack is 3"), ((lambda t: t, 4), "unpack is 4")):
            with self.assertRaisesRegex(TypeError, words):
                Ebb.saved_tensor_hooks(*pair)


class Functions(TestCase):
    def test_a_function_is_checkpointed_with_options(self):
        phases, calls = [], []

        def f(x, *, func):
            calls.append(1)
            return {"y": (x * func).sin().exp()}

        x = Ebb.randn(4, requires_grad=True)
        f(x, func=2.0)["y"].sum().backward()
        plain, x.grad = x.grad, None
        call = Ebb.checkpoint_with(on_recompute=lambda module, phase: phases.append((module, phase)),
                                   determinism_check="values")
        for _ in range(2):
            x.grad = None
            call(f, x, func=2.0)["y"].sum().backward()
            self.assert_same(x.grad, plain)
        self.assertEqual(len(calls), 5)
        self.assertEqual(phases, [(None, "begin"), (None, "end")] * 2)

    def test_all_wrappers_come_off(self):
        root = two_layers()
        plain = list(root.state_dict())
        self.assertEqual(Ebb.checkpoint_unwrap_each(root), 0)
        Ebb.checkpoint_wrap_each(root, Ebb.Linear)
        Ebb.checkpoint_wrapper(Ebb.checkpoint_wrapper(root[0]))
        Ebb.checkpoint_wrap_uniform(root, 1)
        Ebb.checkpoint_wrapper(root)
        self.assertEqual(Ebb.checkpoint_unwrap_each(root), 6)
        self.assertFalse(any(map(Ebb.checkpoint_is_wrapped, root.modules())))
        self.assertEqual(list(root.state_dict()), plain)


class Messages(TestCase):
    """What Python's users write at first, with PyTorch in mind: taken, or answered by one line that names it."""

    def check(self, *cases):
        for call, error, words in cases:
            with self.assertRaises(error) as caught:
                call()
            text = str(caught.exception)
            self.assertTrue(text.startswith(words), text)
            self.assertNotIn("\n", text)
            self.assertNotIn("ebb-error-quark", text)

    def test_arguments_of_constructors_are_named(self):
        self.check(
            (lambda: Ebb.Linear("a", 3), TypeError, "Linear: in_features is 'a': must be an int from -2147483648"),
            (lambda: Ebb.Linear(2**40, 3), ValueError, f"Linear: in_features is {2**40}: must be an int from"),
            (lambda: Ebb.Linear(3, 2, bias="no"), TypeError, "Linear: bias is 'no': must be True or False"),
            (lambda: Ebb.Linear(3, 2, biased=True), TypeError,
             "Linear() has no argument 'biased': did you mean 'bias'? Its arguments are in_features, out_features, "),
            (lambda: Ebb.Linear(3), TypeError, "Linear() needs out_features: its arguments are in_features, out_"),
            (lambda: Ebb.Embedding(), TypeError, "Embedding() needs num_embeddings and embedding_dim: its arguments "),
            (lambda: Ebb.AdamW(Ebb.Linear(2, 2), betaas=3), TypeError,
             "AdamW() has no argument 'betaas': did you mean 'betas'? Its arguments are params, lr, betas, eps, "),
            (lambda: Ebb.HostStore(least_sise=3), TypeError,
             "HostStore() has no argument 'least_sise': did you mean 'least_size'? Its arguments are byte_limit, "),
            (lambda: Ebb.CosineSchedule(optimizer=3), TypeError,
             "CosineSchedule() has no argument 'optimizer': leave it out, and write schedule.apply(optimizer) before "),
            (lambda: Ebb.TokenDecoder(tokeniser=3), TypeError,
             "TokenDecoder() has no argument 'tokeniser': did you mean 'tokenizer'? Its arguments are tokenizer, "),
            (lambda: Ebb.checkpoint_wrapper(Ebb.Tanh(), early_stp=True), TypeError,
             "checkpoint_wrapper() has no option 'early_stp': did you mean 'early_stop'? Its options are "),
            (lambda: Ebb.Linear(3, 2, True, 5), TypeError, "Linear() takes at most 3 positional arguments "),
            (lambda: Ebb.Linear(-3, 2), Ebb.Error, "Linear: in-features is -3, it must be at least 1"),
            (lambda: Ebb.Dropout(1.5), Ebb.Error, "Dropout: p is 1.5"),
            (lambda: Ebb.Dropout("a"), TypeError, "Dropout: p is 'a': must be a number"),
            (lambda: Ebb.CosineSchedule(-1, 5), ValueError, "CosineSchedule: warmup_steps is -1: must be an int from "),
            (lambda: Ebb.GELU("round"), ValueError, "GELU: kind is 'round': must be one of 'exact', 'tanh'"),
            (lambda: Ebb.Sequential([Ebb.ReLU()]), TypeError, "Sequential(): a list is no module: write "
                                                              "ebb.Sequential(*modules)"),
            (lambda: Ebb.ModuleList(Ebb.ReLU()), TypeError, "ModuleList(): modules is "))
        self.assertEqual(Ebb.Linear(True + 1, 3).out_features, 3)

    def test_arguments_of_pytorch_say_what_to_write(self):
        linear = Ebb.Linear(2, 2)
        for cls, name, words in (
                (Ebb.LayerNorm, "elementwise_affine", "the layer has a weight: write ebb.layer_norm(x) "),
                (Ebb.MultiHeadAttention, "num_heads", "write heads=; "),
                (Ebb.TransformerBlock, "d_model", "write width=; "), (Ebb.GptConfig, "n_embd", "write width=; "),
                (lambda **given: Ebb.AdamW(linear, **given), "learning_rate", "write lr=; "),
                (lambda **given: Ebb.AdamW(linear, **given), "amsgrad", "there is no such variant: leave it out; "),
                (Ebb.TrainingState, "model", "write module=; its arguments are module, optimizer, ")):
            with self.assertRaisesRegex(TypeError, rf"\(\) has no argument '{name}': {re.escape(words)}"):
                cls(**{name: 4})
        self.check((lambda: Ebb.LayerNorm((4, 4)), TypeError, "LayerNorm: width is (4, 4): must be an int, the "),
                   (lambda: Ebb.AdamW(linear).learning_rate, AttributeError,
                    "AdamW has no attribute 'learning_rate': write lr"))

    def test_arguments_of_functions_are_named(self):
        x = Ebb.ones(2, 3)
        self.check(
            (lambda: Ebb.matmul(x, 3), TypeError, "matmul(): b is 3: it must be an ebb.Tensor"),
            (lambda: Ebb.cross_entropy("a", x), TypeError, "cross_entropy(): logits is 'a': it must be an ebb.Tensor"),
            (lambda: Ebb.dropout(x, "a"), TypeError, "dropout(): p is 'a': it must be a number"),
            (lambda: Ebb.cat([x, 3]), TypeError, "cat(): "),
            (lambda: x.masked_fill(x > 0, "a"), TypeError, "masked_fill(): value is 'a': it must be a number"),
            (lambda: x.masked_fill("a", 0), TypeError, "masked_fill(): mask is 'a': it must be an ebb.Tensor"),
            (lambda: x.masked_fill_(x > 0, "a"), TypeError, "masked_fill_(): value is 'a': it must be a number"),
            (lambda: x.masked_fill_(3, 0), TypeError, "masked_fill_(): mask is 3: it must be an ebb.Tensor"),
            (lambda: Ebb.load_safetensors(3), TypeError, "load_safetensors(): path is 3: it must be a path"),
            (lambda: Ebb.load_safetensors("/nowhere"), Ebb.Error, "can't read /nowhere: No such file"),
            (lambda: setattr(Ebb.GptConfig.new(), "vocab", "a"), TypeError,
             "GptConfig.vocab is 'a': it must be an int"),
            (lambda: setattr(Ebb.GptConfig.new(), "vocabulary", 3), AttributeError,
             "GptConfig has no attribute 'vocabulary' that can be set: it has "),
            (lambda: setattr(Ebb.GptConfig.new(), "widht", 3), AttributeError,
             "GptConfig has no attribute 'widht' that can be set: did you mean 'width'? It has "),
            (lambda: Ebb.GptConfig.new().widht, AttributeError,
             "GptConfig has no attribute 'widht': did you mean 'width'? It has "),
            (lambda: Ebb.ones("a"), TypeError, "sizes ('a',): they must be ints"),
            (lambda: Ebb.tensor([1.5, "a"]), TypeError, "tensor(): 'a' is no number"),
            (lambda: x @ x, Ebb.Error, "matmul: "))
        with self.assertRaises(GLib.Error) as caught:
            x @ x
        self.assertTrue(caught.exception.matches(Ebb.error_quark(), Ebb.Error.SHAPE))
        self.assertEqual(str(caught.exception), caught.exception.message)

    def test_arguments_of_modules_are_named(self):
        class Array:  # as PyTorch's tensors, which have no __array_interface__
            def __dlpack__(self, stream=None):
                return np.ones((1, 3), np.float32).__dlpack__()

        class Own(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.layer = Ebb.Linear(3, 3)

            def forward(self, x):
                return self.layer(Ebb.tensor(x)) if isinstance(x, np.ndarray) else self.layer(x)

        layer, x, wanted = Ebb.Linear(3, 3), Ebb.ones(1, 2, 4), ": it must be an ebb.Tensor, as ebb.tensor(x) makes"
        attention = Ebb.MultiHeadAttention(4, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value, name in ((np.ones((1, 3)), "numpy.ndarray"), (Array(), f"{__name__}.Array"), ([1.0], "list"),
                                (3, "int")):
                self.check(
                    (lambda: layer(value), TypeError, f"Linear(): its argument is of type {name}{wanted}"),
                    (lambda: Ebb.Sequential(layer)(value), TypeError, f"0: Linear(): its argument is of type {name}"),
                    (lambda: Ebb.checkpoint_wrapper(Ebb.Linear(3, 3))(value), TypeError, "Linear(): its argument is "),
                    (lambda: Ebb.ModuleList([layer]).call_in_turn(value), TypeError, "Linear(): its argument is "),
                    (lambda: attention(value), TypeError, f"MultiHeadAttention(): x is of type {name}{wanted}"),
                    (lambda: attention(x, mask=value), TypeError, f"MultiHeadAttention(): mask is of type {name}"))
            self.assertEqual(Own()(np.ones((1, 3))).shape, (1, 3))
        self.check((lambda: Own()([1.0]), TypeError, f"Linear(): its argument is of type list{wanted}"),
                   (lambda: layer(None), Ebb.Error, "Linear: takes one tensor, but got (none)"),
                   (lambda: layer(x, 3), Ebb.Error, "Linear: takes one tensor, but got (f32[1, 2, 4], 3)"))
        self.assertEqual(Ebb.tensor(Array()).tolist(), [[1, 1, 1]])

    def test_types_of_modules_have_their_names_of_python(self):
        class Block(Ebb.Module):
            pass

        model = Ebb.Sequential(Ebb.Linear(3, 3))
        for wrap in (Ebb.checkpoint_wrap_each, Ebb.tile_wrap_each, Ebb.offload_wrap_each, Ebb.fully_shard_wrap_each):
            self.check((lambda: wrap(model, Ebb.TransformerBlock), Ebb.Error,
                        "there is no TransformerBlock in this Sequential"),
                       (lambda: wrap(model, Block), Ebb.Error, "there is no Block in this Sequential"))

    def test_dtypes_and_devices_are_told_apart(self):
        for thing in (Ebb.Linear(2, 2), Ebb.ones(2)):
            self.check(
                (lambda: thing.to("f64"), TypeError, "to(): 'f64' is neither a dtype (f32, "),
                (lambda: thing.to(3), TypeError, "to(): 3 is neither a dtype (f32, "),
                (lambda: thing.to("nowhere"), Ebb.Error, "no device \"nowhere\" here; there is cpu"))
        self.assertEqual(Ebb.ones(2).to(Ebb.ones(1).bfloat16()).dtype, Ebb.bfloat16)

    def test_a_forgotten_constructor_is_named(self):
        class Assigns(Ebb.Module):
            def __init__(self):
                self.layer = Ebb.Linear(2, 2)

        class Forgets(Ebb.Module):
            def __init__(self):
                self.width = 3

        class Before(Ebb.Module):
            def __init__(self):
                self.width = 3
                super().__init__()
                self.layer = Ebb.Linear(self.width, 2)

        self.check((Assigns, AttributeError, "Assigns.__init__() must call super().__init__() before it assigns or "
                                             "uses 'layer'"),
                   (Forgets, AttributeError, "Forgets.__init__() must call super().__init__()"))
        self.assertEqual(Before().layer.in_features, 3)

    def test_registering_by_name_is_that_of_pytorch(self):
        class Net(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", Ebb.zeros(3))
                self.register_buffer("seen", Ebb.zeros(1), persistent=False)
                self.register_parameter("scale", Ebb.Parameter(Ebb.ones(3)))
                self.register_parameter("shift", Ebb.ones(3))
                self.add_module("layer", Ebb.Linear(3, 3))

        net = Net()
        self.assertEqual(sorted(net.state_dict()), ["layer.bias", "layer.weight", "mean", "scale", "shift"])
        self.assertTrue(net.scale.requires_grad and net.shift.requires_grad and not net.mean.requires_grad)
        net.register_buffer("mean", None)
        self.assertNotIn("mean", net.state_dict())
        self.check((lambda: net.register_buffer("b", 3), TypeError, "register_buffer(): b is 3: it must be a tensor"),
                   (lambda: net.register_parameter("p", 3), TypeError, "register_parameter(): p is 3: it must be an "),
                   (lambda: net.add_module("m", 3), TypeError, "register_child(): m is 3: it must be an ebb.Module"),
                   (lambda: net.load_state_dict(3), TypeError, "load_state_dict(): state is 3: it must be a dict"),
                   (lambda: net.train("no"), TypeError, "train(): mode is 'no': must be True or False"))

    def test_weights_are_tied_by_assignment(self):
        class Tied(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.head = Ebb.Embedding(7, 4), Ebb.Linear(4, 7, bias=False)
                self.head.weight = self.embedding.weight

            def forward(self, x):
                return self.head(self.embedding(x))

        model = Tied()
        before = Ebb.memory_stats()["gradient"]["current"]
        model(Ebb.tensor([1, 2])).sum().backward()
        self.assert_same(model.head.weight, model.embedding.weight)
        self.assertEqual(Ebb.memory_stats()["gradient"]["current"] - before, 4 * 7 * 4)
        optimizer = Ebb.SGD(model.parameters(), 0.1)
        optimizer.step()
        self.assert_same(model.head.weight, model.embedding.weight)
        self.assertEqual(len(optimizer.get_parameters()), 1)
        self.check((lambda: setattr(model.head, "weight", Ebb.ones(7, 4)), TypeError,
                    "Linear.weight is a parameter: assign another ebb.Parameter or another module's parameter"))

    def test_tensors_are_saved_in_pytorchs_order_too(self):
        tensors = Ebb.Linear(2, 2).state_dict()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "m.safetensors")
            for arguments in ((tensors, path), (path, tensors), (tensors, str(path)), (str(path), tensors, {"a": "b"})):
                Ebb.save_safetensors(*arguments)
                loaded = Ebb.load_safetensors(path)
                self.assertEqual(list(loaded), list(tensors))
                self.assert_same(loaded["weight"], tensors["weight"])
                path.unlink()
        self.check((lambda: Ebb.save_safetensors(tensors["weight"], "x"), TypeError, "save_safetensors(): tensors is "),
                   (lambda: Ebb.save_safetensors(tensors, 3), TypeError, "save_safetensors(): path is 3: it must be"),
                   (lambda: Ebb.save_safetensors({"a": 3}, "x"), TypeError, "save_safetensors(): tensors['a'] is 3: "))

    def test_success_is_no_result(self):
        linear = Ebb.Linear(2, 2)
        linear(Ebb.ones(1, 2)).sum().backward()
        self.assertIsInstance(Ebb.clip_grad_norm(linear.parameters(), 1.0), Ebb.Tensor)
        self.assertIsInstance(Ebb.SGD(linear).clip_grad_norm(1.0), Ebb.Tensor)
        self.assertEqual(Ebb.ones(1).get_item(), 1.0)
        self.assertEqual(Ebb.dtype_from_name("bf16"), Ebb.bfloat16)
        self.assertEqual(len(Ebb.topk(Ebb.ones(4), 2, largest=True)), 2)

    def test_names_are_those_of_pytorch(self):
        x = Ebb.tensor([-1.0, 2.0])
        self.assertEqual(Ebb.ReLU()(x).tolist(), [0, 2])
        self.assert_same(Ebb.GELU()(x), Ebb.gelu(x))
        self.assert_same(Ebb.SiLU()(x), x.silu())
        self.assertIs(Ebb.SGD, Ebb.Sgd)


class FailingStore(Ebb.ActivationStore):
    def __init__(self):
        super().__init__()
        self.least_size = 1
        self.fails, self.exception = None, None

    def visit(self, place):
        if self.fails == place:
            raise self.exception

    def do_moves(self, device):
        self.visit("moves")
        return True

    def do_put(self, block):
        self.visit("put")
        return Ebb.Handle.new(block.clone())

    def do_get(self, handle):
        self.visit("get")
        return handle.get_tensor().clone()


class Stores(TestCase):
    def test_exceptions_of_a_store_come_out_as_they_are(self):
        store = FailingStore()
        for place in ("moves", "put", "get"):
            for exception in (OSError("disk full"), KeyboardInterrupt()):
                module = Ebb.checkpoint_wrapper(Ebb.Sequential(Ebb.Linear(4, 4), Ebb.Tanh()), store=store)
                store.fails, store.exception = place, exception
                with self.assertRaises(type(exception)) as caught:
                    module(Ebb.ones(2, 4)).sum().backward()
                self.assertIs(caught.exception, exception)
                self.assertEqual(module.forward_counter, 0)
                store.fails = None
                self.assertEqual(store.get_bytes_held(), 0)
                module(Ebb.ones(2, 4)).sum().backward()
        self.assertGreater(store.get_bytes_put(), 0)

    def test_exceptions_of_a_store_in_use_come_out_of_the_op(self):
        store, x = FailingStore(), Ebb.ones(4, requires_grad=True)
        for place in ("moves", "put", "get"):
            store.fails, store.exception = None, ValueError(place)
            with store:
                y = x * 2
                store.fails = place
                with self.assertRaises(ValueError) as caught:
                    y.exp().sum().backward()
                self.assertIs(caught.exception, store.exception)

    def test_a_store_that_calls_the_one_above_loses_nothing(self):
        class Calls(FailingStore):
            def do_pack(self, tensor):
                return Ebb.ActivationStore.do_pack(self, tensor)

        store, x = Calls(), Ebb.ones(4, requires_grad=True)
        for place in ("moves", "put"):
            store.fails, store.exception = place, OSError("disk full")
            with store, self.assertRaises(OSError) as caught:
                (x * 2).exp()
            self.assertIs(caught.exception, store.exception)

    def test_what_a_store_returns_is_named(self):
        x = Ebb.ones(4, requires_grad=True)

        def define(name, result):
            return type("Wrong", (FailingStore,), {"__module__": __name__, name: lambda self, argument: result})

        for name, result, kind in (("do_put", 3, "Handle"), ("do_put", None, "Handle"), ("do_get", "x", "Tensor"),
                                   ("do_pack", x, "Handle"), ("do_unpack", None, "Tensor")):
            with define(name, result)(), self.assertRaises(TypeError) as caught:
                (x * 2).exp().sum().backward()
            self.assertEqual(str(caught.exception),
                             f"{name} of Wrong returned {result!r}: it must return an ebb.{kind}")


main()
