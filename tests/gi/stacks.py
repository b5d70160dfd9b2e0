"""Stacks of layers in chunks and sequences in segments, from Python."""
import gc
import weakref

from support import Ebb, TestCase, main


class Layer(Ebb.Module):
    """Counts its calls; takes more than a tensor, gives one."""

    def __init__(self):
        super().__init__()
        self.linear = Ebb.Linear(4, 4)
        self.dropout = Ebb.Dropout(0.2)
        self.calls = 0

    def forward(self, x, scale=1.0, *, shift=None):
        self.calls += 1
        y = self.dropout(Ebb.tanh(self.linear(x))) * scale
        return y if shift is None else y + shift["by"]


class Model(Ebb.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = Ebb.ModuleList([Layer() for _ in range(n)])

    def forward(self, x, scale=1.0, shift=None):
        return self.layers.call_in_turn(x, scale, shift=shift)


class Pair(Ebb.Module):
    def forward(self, x):
        a, info = x if isinstance(x, tuple) else (x, {"n": 0})
        return Ebb.tanh(a), {"n": info["n"] + 1}


def train(module, call):
    Ebb.manual_seed(7)
    module.zero_grad()
    y = call(Ebb.randn(3, 4))
    y.square().sum().backward()
    return [y, *(parameter.grad for parameter in module.parameters())]


class Stacks(TestCase):
    def assert_all_same(self, a, b):
        self.assertEqual(len(a), len(b))
        for one, other in zip(a, b):
            self.assert_same(one, other)

    def test_chunks_of_a_list_are_recomputed_together(self):
        shift = {"by": Ebb.ones(4)}
        model = Model(5)
        plain = train(model, lambda x: model(x, 0.5, shift))
        names = list(model.state_dict())
        for n in range(1, 6):
            for layer in model.layers:
                layer.calls = 0
            self.assertIs(Ebb.checkpoint_wrap_uniform(model.layers, n, determinism_check="values"), model.layers)
            self.assertTrue(Ebb.checkpoint_is_wrapped(model.layers))
            self.assert_all_same(train(model, lambda x: model(x, 0.5, shift)), plain)
            self.assertEqual([layer.calls for layer in model.layers], [2] * 5)
            self.assertEqual([layer.forward_counter for layer in model.layers], [0] * 5)
            self.assertEqual(Ebb.checkpoint_get_n_recomputes(model.layers), -(-5 // n))
            self.assertEqual(list(model.state_dict()), names)
            self.assertTrue(Ebb.checkpoint_unwrap(model.layers))

    def test_a_list_is_called_in_turn(self):
        model = Model(3)
        Ebb.manual_seed(7)
        x = Ebb.randn(3, 4)
        y = x
        for layer in model.layers:
            y = layer(y, 2.0)
        Ebb.manual_seed(7)
        x = Ebb.randn(3, 4)
        self.assert_same(model.layers.call_in_turn(x, 2.0), y)
        with self.assertRaisesRegex(Exception, "by position"):
            model.layers.call_in_turn(x=x)
        self.assertEqual(Ebb.ModuleList().call_in_turn(5), 5)

    def test_the_layers_of_a_gpt(self):
        config = Ebb.GptConfig.new()
        for name, value in (("layers", 3), ("width", 16), ("heads", 2), ("context", 8), ("vocab", 11)):
            setattr(config, name, value)
        model = Ebb.Gpt(config)
        tokens = Ebb.arange(8).to("int64").reshape(1, 8)
        plain = train(model, lambda _: model(tokens))
        Ebb.checkpoint_wrap_uniform(model.h, 2, policy="selective")
        self.assert_all_same(train(model, lambda _: model(tokens)), plain)
        self.assertIn("h.0 to h.1", Ebb.checkpoint_report(model))
        Ebb.checkpoint_unwrap(model.h)
        Ebb.checkpoint_wrap_block(model.h, 2)
        self.assertEqual([Ebb.checkpoint_is_wrapped(layer) for layer in model.h], [True, True, False])
        self.assert_all_same(train(model, lambda _: model(tokens)), plain)
        for wrap in (Ebb.checkpoint_wrap_uniform, Ebb.checkpoint_wrap_block):
            for n in (0, 4):
                with self.assertRaisesRegex(Exception, f"is {n} in a ModuleList of 3 layers: it must be from 1 to 3"):
                    wrap(model.h, n)

    def test_an_exception_in_a_chunk_comes_out_as_it_is(self):
        failure = ZeroDivisionError("layer 1")
        model = Model(3)
        Ebb.checkpoint_wrap_uniform(model.layers, 2)
        forward = Layer.forward
        try:
            Layer.forward = lambda self, *args, **kwargs: 1 / 0 if self is model.layers[1] else forward(
                self, *args, **kwargs)
            y = None
            with self.assertRaises(ZeroDivisionError):
                model(Ebb.ones(1, 4))
        finally:
            Layer.forward = forward
        self.assertEqual([layer.forward_counter for layer in model.layers], [0] * 3)

        def fail(*_):
            raise failure

        y = model(Ebb.ones(1, 4))
        handle = model.layers[0].register_forward_hook(fail)
        with self.assertRaises(ZeroDivisionError) as caught:
            y.sum().backward()
        self.assertIs(caught.exception, failure)
        handle.remove()

    def test_a_chunk_keeps_no_layer_alive(self):
        model = Model(2)
        Ebb.checkpoint_wrap_uniform(model.layers, 2)
        y = model(Ebb.ones(1, 4))
        layer = weakref.ref(model.layers[0])
        del model
        gc.collect()
        self.assertIsNone(layer())
        with self.assertRaisesRegex(Exception, "finalized"):
            y.sum().backward()


class Sequences(TestCase):
    def test_segments_give_what_the_sequence_gives(self):
        model = Ebb.Sequential(*(Layer() for _ in range(5)))
        plain = train(model, model)
        for n in range(1, 6):
            for layer in model:
                layer.calls = 0
            result = train(model, lambda x: Ebb.checkpoint_sequential(model, n, x, determinism_check="values"))
            for a, b in zip(result, plain):
                self.assert_same(a, b)
            again = (n - 1) * (5 // n)
            self.assertEqual([layer.calls for layer in model], [2] * again + [1] * (5 - again))

    def test_any_value_goes_from_one_to_the_next(self):
        model = Ebb.Sequential(Pair(), Pair(), Pair())
        x = Ebb.ones(2, 4, requires_grad=True)
        y, info = Ebb.checkpoint_sequential(model, 2, x)
        self.assertEqual(info, {"n": 3})
        self.assert_same(y, model(x)[0])
        y.sum().backward()
        self.assertIsNotNone(x.grad)

    def test_errors_name_the_number(self):
        model = Ebb.Sequential(Pair(), Pair())
        for n in (0, 3):
            with self.assertRaisesRegex(Exception, f"n_segments is {n} .*from 1 to 2"):
                Ebb.checkpoint_sequential(model, n, Ebb.ones(1))


main()
