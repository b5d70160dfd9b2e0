"""Arguments and results of calls: what goes into a module comes out of it, in kind, type and nesting."""
import collections
import gc
import math
import warnings
import weakref

from support import Ebb, TestCase, main
from gi.repository import GLib, GObject


class Echo(Ebb.Module):
    """Gives back what it got."""

    def forward(self, *args, **kwargs):
        self.seen = (args, kwargs)
        return args[0] if args else kwargs


class Whole(Ebb.Module):
    def forward(self, *args, **kwargs):
        return args, kwargs


Pair = collections.namedtuple("Pair", "a b")


class Number(int):
    pass


class Arguments(TestCase):
    def round_trip(self, value):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Echo()(value)

    def check(self, value):
        found = self.round_trip(value)
        self.assertIs(type(found), type(value))
        self.assertEqual(found, value)

    def test_plain_values_come_back_equal_in_value_and_type(self):
        for value in (None, True, False, 0, -1, 2 ** 63 - 1, -2 ** 63, 0.5, -0.0, math.inf, "", "é∂\n", "a" * 10000):
            self.check(value)
        self.assertEqual(math.copysign(1, self.round_trip(-0.0)), -1)
        self.assertTrue(math.isnan(self.round_trip(math.nan)))

    def test_containers_come_back_equal(self):
        for value in ([], (), {}, [1], (1,), (1, 2.0, "x", None), {"a": 1, "": 2}, [[], [()], {"a": {"b": [True]}}],
                      ({"z": 1, "a": 2},), [None], (None,), {"not an identifier": [1]}):
            self.check(value)
        self.assertEqual(list(self.round_trip({"z": 1, "a": 2})), ["z", "a"])

    def test_a_bare_result_and_a_tuple_of_one_differ(self):
        x = Ebb.ones(2)
        self.assertIsInstance(self.round_trip(x), Ebb.Tensor)
        self.assertIs(type(self.round_trip((x,))), tuple)
        self.assertIs(type(self.round_trip([x])), list)

    def test_tensors_come_back_as_the_same_tensor_at_any_depth(self):
        x, y = Ebb.ones(2), Ebb.zeros(3)
        found = self.round_trip({"a": [x, (y,)], "b": x})
        self.assertEqual(hash(found["a"][0]), hash(x))
        self.assertEqual(hash(found["a"][1][0]), hash(y))
        self.assertEqual(hash(found["b"]), hash(x))

    def test_everything_else_comes_back_as_the_same_object(self):
        for value in (2 ** 63, -2 ** 63 - 1, 2 ** 200, Number(3), Pair(1, 2), {1: 2}, {"a": 1, 2: 3}, {1, 2}, b"bytes",
                      1 + 2j, object(), print, "a\0b", "\ud800", collections.OrderedDict(a=1), type, Ebb.DType.F32):
            self.assertIs(self.round_trip(value), value)
            self.assertIs(self.round_trip([value])[0], value)

    def test_objects_of_gobject_classes_pass_as_they_are(self):
        for value in (GObject.Object(), Ebb.Linear(2, 2), Echo()):
            self.assertIs(self.round_trip(value), value)

    def test_opaque_objects_are_freed_with_the_arguments(self):
        class Thing:
            pass

        thing = Thing()
        gone = weakref.ref(thing)
        echo = Echo()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            echo(thing)
        del thing, echo
        gc.collect()
        self.assertIsNone(gone())

    def test_an_opaque_container_warns_once(self):
        class Box:
            def __init__(self):
                self.tensor = Ebb.ones(1)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            echo = Echo()
            echo(Box())
            echo(Box())
            echo(2 ** 100)
            echo([1, {"a": 2}])
        self.assertEqual(len(caught), 1)
        self.assertIn("Box", str(caught[0].message))

    def test_positional_and_keyword_arguments_arrive_as_given(self):
        x = Ebb.ones(1)
        args, kwargs = Whole()(x, 2, [3], mask=None, **{"odd name": "v"})
        self.assertEqual(args[1:], (2, [3]))
        self.assertEqual(kwargs, {"mask": None, "odd name": "v"})
        self.assertEqual(Whole()(), ((), {}))
        self.assertEqual(Whole()(None), ((None,), {}))
        self.assertEqual(Whole()((1, 2)), (((1, 2),), {}))

    def test_they_survive_a_checkpoint_and_its_recompute(self):
        calls = []

        class Watch(Ebb.Module):
            def forward(self, x, pair, *, options):
                calls.append((pair, options["scale"], type(options["seen"])))
                return (x * options["scale"]).tanh()

        module = Ebb.checkpoint_wrapper(Watch())
        pair = Pair(1, 2)
        x = Ebb.ones(3, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module(x, pair, options={"scale": 2.0, "seen": (1,)}).sum().backward()
        self.assertEqual(len(calls), 2)
        self.assertEqual(calls[0], calls[1])
        self.assertIs(calls[1][0], pair)

    def test_c_layers_say_what_they_take(self):
        with self.assertRaises(GLib.Error) as caught:
            Ebb.Linear(2, 2)("x")
        self.assertIn("Linear", caught.exception.message)

    def test_state_of_c_objects_is_a_dict(self):
        module = Ebb.Linear(2, 2)
        optimizer = Ebb.AdamW(module, 0.1)
        module(Ebb.ones(1, 2)).sum().backward()
        optimizer.step()
        state = optimizer.get_state()
        self.assertIs(type(state), dict)
        optimizer.load_state(state)


if __name__ == "__main__":
    main()
