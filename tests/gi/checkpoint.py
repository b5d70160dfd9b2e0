"""What a checkpoint promises, in Python: any call, the same module, the same gradients, and nothing left behind."""
import collections
import gc
import math
import threading
import warnings
import weakref

from support import Ebb, Residual, TestCase, main, tensor_bytes
from gi.repository import GObject

Pair = collections.namedtuple("Pair", "a b")


class Echo(Ebb.Module):
    """Computes with the tensors that it finds, at any depth, and gives back all that it got."""

    def __init__(self):
        super().__init__()
        self.gain = Ebb.Parameter(Ebb.randn(4))
        self.seen = []

    def forward(self, *args, **kwargs):
        self.seen.append((args, kwargs))
        total = Ebb.zeros(4)
        for tensor in tensors_in((args, kwargs)):
            total = total + (tensor * self.gain).sin().exp()
        return args, kwargs, total


def tensors_in(value):
    if isinstance(value, Ebb.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in tensors_in(part)] if type(value) in (list, tuple) else []


def objects_in(value):
    """All but containers and plain values, at any depth."""
    if isinstance(value, dict) and type(value) is dict and all(type(k) is str for k in value):
        value = list(value.values())
    if type(value) in (list, tuple):
        return [found for part in value for found in objects_in(part)]
    plain = value is None or type(value) in (bool, float, str) or type(value) is int and -2**63 <= value < 2**63
    return [] if plain or isinstance(value, Ebb.Tensor) else [value]


def form(value):
    """A value with the types of all its parts, and its numbers to the last bit."""
    if isinstance(value, Ebb.Tensor):
        return Ebb.Tensor, value.shape, value.requires_grad, value.detach().tolist()
    if type(value) is dict:
        return dict, [(k, form(v)) for k, v in value.items()]
    if type(value) in (list, tuple):
        return type(value), [form(v) for v in value]
    return type(value), float.hex(value) if type(value) is float else value


def mlp():
    return Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Tanh(), Ebb.Dropout(0.3), Ebb.Linear(16, 8))


def train(model, *args, dtype=None, **kwargs):
    """Outputs, gradients, buffers and the generator's place after one step from a fixed seed."""
    Ebb.manual_seed(99)
    model.zero_grad()
    leaves = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
    for leaf in leaves:
        leaf.grad = None
    outputs = tensors_in((model(*args, **kwargs),))
    loss = None
    for output in outputs:
        if output.requires_grad:
            part = output.float().square().sum()
            loss = part if loss is None else loss + part
    loss.backward()
    grads = [p.grad for p in model.parameters()] + [leaf.grad for leaf in leaves]
    generator = Ebb.Generator.get_default()
    return [o.detach() for o in outputs] + grads, (generator.get_seed(), generator.get_offset())


class CheckpointCase(TestCase):
    def assert_same_step(self, a, b):
        self.assertEqual(a[1], b[1])
        self.assertEqual(len(a[0]), len(b[0]))
        for x, y in zip(a[0], b[0]):
            self.assertEqual(x is None, y is None)
            if x is not None:
                self.assert_same(x, y)

    def assert_counters(self, model, expected=0):
        self.assertEqual({m.forward_counter for m in model.modules()}, {expected})


class Calls(CheckpointCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.addCleanup(warnings.resetwarnings)

    def values(self):
        x, y = Ebb.randn(4, requires_grad=True), Ebb.randn(4, requires_grad=True)
        thing = GObject.Object()
        args = (x, None, -2**63, 2**63, [True, (), [], {}], (1,), "naïve", object())
        kwargs = {"flag": False, "z": -0.0, "none": None, "again": x, "deep": {"b": [y, (x, {"c": y})], "a": math.pi},
                  "pair": Pair(1, x), "thing": thing, "odd keys": {1: 2}, "module": Ebb.Linear(2, 2)}
        return args, kwargs

    def test_everything_comes_through_the_forward_and_its_recompute(self):
        args, kwargs = self.values()
        expected = form((args, kwargs))
        module = Ebb.checkpoint_wrapper(Echo())
        got_args, got_kwargs, total = module(*args, **kwargs)
        self.assertEqual(form((got_args, got_kwargs)), expected)
        for found, given in zip(objects_in((got_args, got_kwargs)), objects_in((args, kwargs))):
            self.assertIs(found, given)
        total.sum().backward()
        self.assertEqual(len(module.seen), 2)
        for seen in module.seen:
            self.assertEqual(form(seen), expected)
            self.assertEqual([id(o) for o in objects_in(seen)], [id(o) for o in objects_in((args, kwargs))])
        self.assertEqual(form((args, kwargs)), expected)  # what the caller has is as it was

    def test_tensors_at_any_depth_are_differentiated(self):
        args, kwargs = self.values()
        module = Echo()
        plain = train(module, *args, **kwargs)
        Ebb.checkpoint_wrapper(module, determinism_check="values")
        self.assert_same_step(plain, train(module, *args, **kwargs))

    def test_results_keep_their_kind(self):
        x = Ebb.randn(4, requires_grad=True)

        class Give(Ebb.Module):
            def forward(self, x, give):
                return give(x.exp())

        module = Ebb.checkpoint_wrapper(Give())
        for give in (lambda y: y, lambda y: (y,), lambda y: [y], lambda y: (y, None), lambda y: {"a": y, "b": [y, 1]},
                     lambda y: [], lambda y: (), lambda y: None, lambda y: 3, lambda y: "s", lambda y: [[(y,)]]):
            self.assertEqual(form(module(x, give)), form(give(x.exp())))

    def test_same_tensor_is_kept_once(self):
        packed = []

        class Watch(Ebb.SavedTensorHooks):
            def do_pack(self, tensor):
                packed.append(tensor.shape)
                return Ebb.Handle.new(tensor)

            def do_unpack(self, handle):
                return handle.get_tensor()

        x = Ebb.randn(4)
        module = Ebb.checkpoint_wrapper(Echo(), store=Watch())
        module(x, [x, {"a": x}], k=x)
        self.assertEqual(packed, [(4,)])

    def test_callers_tensors_are_never_changed(self):
        x, y = Ebb.randn(4), Ebb.randn(4, requires_grad=True)
        z = y * 2
        before = [(t.tolist(), t.requires_grad, t.is_leaf, t.get_version(), t.get_address()) for t in (x, y, z)]
        module = Ebb.checkpoint_wrapper(Echo(), offload_to_cpu=True)
        out = module(x, [y], k={"z": z})[2]
        self.assertEqual(hash(module(x)[0][0]), hash(x))
        out.sum().backward()
        self.assertEqual(
            [(t.tolist(), t.requires_grad, t.is_leaf, t.get_version(), t.get_address()) for t in (x, y, z)], before)


class Options(CheckpointCase):
    def test_offload_to_cpu_hands_inputs_to_the_host_store(self):
        store = Ebb.HostStore.get_default()
        before = store.least_size
        store.least_size = 1
        self.addCleanup(setattr, store, "least_size", before)
        for offload in (False, True):
            module = Ebb.checkpoint_wrapper(mlp(), offload_to_cpu=offload)
            loss = module(Ebb.randn(3, 8)).sum()
            self.assertEqual(store.get_bytes_held(), 3 * 8 * 4 if offload else 0)
            loss.backward()
            self.assertEqual(store.get_bytes_held(), 0)

    def test_early_stop_is_on_unless_told_otherwise(self):
        class Reads(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.ends = Ebb.Linear(4, 4), 0

            def forward(self, x):
                y = self.linear(x).tanh()
                y.sum().item()  # has data only if the tanh has run
                z = y * 2
                z.sum().item()
                self.ends += 1
                return z

        for options, ends in (({}, 1), ({"early_stop": True}, 1), ({"early_stop": False}, 2)):
            module = Ebb.checkpoint_wrapper(Reads(), **options)
            module(Ebb.randn(2, 4)).sum().backward()
            self.assertEqual(module.ends, ends)


class SameModule(CheckpointCase):
    def test_object_class_attributes_and_names_are_those_of_before(self):
        module = Residual(mlp(), scale=0.5)
        module.note = ["mine"]
        attributes = dict(vars(module))
        names, state = [n for n, _ in module.named_modules()], module.state_dict()
        self.assertIs(Ebb.checkpoint_wrapper(module, early_stop=False), module)
        self.assertIs(Ebb.checkpoint_wrapper(module), module)
        self.assertIs(type(module), Residual)
        self.assertEqual(vars(module), attributes)
        self.assertEqual([n for n, _ in module.named_modules()], names)
        self.assertEqual(list(module.state_dict()), list(state))
        for name, value in module.state_dict().items():
            self.assert_same(value, state[name])
        module.load_state_dict(state)
        self.assertTrue(Ebb.checkpoint_unwrap(module))
        self.assertTrue(Ebb.checkpoint_is_wrapped(module))
        self.assertTrue(Ebb.checkpoint_unwrap(module))
        self.assertFalse(Ebb.checkpoint_is_wrapped(module))

    def test_a_dropped_module_goes_at_once_at_any_moment(self):
        class Fails(Residual):
            fails = False

            def forward(self, x, **kwargs):
                if self.fails:
                    raise ValueError("told so")
                return super().forward(x, **kwargs)

        def step(module):
            module(Ebb.randn(2, 8))[0].sum().backward()

        def fail_in_forward(module):
            module.fails = True
            with self.assertRaises(ValueError):
                module(Ebb.randn(2, 8))

        def fail_in_recompute(module):
            out = module(Ebb.randn(2, 8))[0].sum()
            module.fails = True
            with self.assertRaises(ValueError):
                out.backward()

        for use in (lambda module: None, step, fail_in_forward, fail_in_recompute):
            for wrappers in range(3):
                if use is fail_in_recompute and wrappers == 0:
                    continue
                module = Fails(mlp())
                if wrappers > 1:
                    Ebb.checkpoint_wrap_each(module, Ebb.Linear)
                if wrappers:
                    Ebb.checkpoint_wrapper(module)
                gone = [weakref.ref(m) for m in module.modules()]
                use(module)
                gc.collect()  # cycles of the test's own making; what follows must need none
                gc.disable()
                try:
                    del module
                    self.assertEqual([ref() for ref in gone], [None] * len(gone))
                finally:
                    gc.enable()

    def test_a_module_dropped_before_backward_is_a_clear_error(self):
        module = Ebb.checkpoint_wrapper(Residual(mlp()))
        out = module(Ebb.randn(2, 8))[0].sum()
        gone = weakref.ref(module)
        del module
        self.assertIsNone(gone())
        with self.assertRaises(Exception) as caught:
            out.backward()
        self.assertIn("finalized", str(caught.exception))


class Rules(CheckpointCase):
    def test_outputs_require_gradients_exactly_when_something_does(self):
        for parameter in (False, True):
            for tensor in (False, True):
                for wrap in (False, True):
                    module = Residual(Ebb.Linear(4, 4))
                    module.requires_grad = parameter
                    for p in module.parameters():
                        p.requires_grad = parameter
                    if wrap:
                        Ebb.checkpoint_wrapper(module)
                    x = Ebb.randn(2, 4, requires_grad=tensor)
                    out, info = module(x)
                    self.assertEqual(out.requires_grad, parameter or tensor)
                    self.assertEqual(module.forward_counter, int(wrap and (parameter or tensor)))
                    del out, info

    def test_frozen_prefix_runs_once_and_each_later_module_twice(self):
        calls = collections.Counter()

        class Layer(Ebb.Module):
            def __init__(self, name):
                super().__init__()
                self.linear, self.name = Ebb.Linear(4, 4), name

            def forward(self, x):
                calls[self.name] += 1
                return self.linear(x).tanh()

        for n_frozen in range(5):
            layers = [Ebb.checkpoint_wrapper(Layer(i)) for i in range(4)]
            for layer in layers[:n_frozen]:
                for p in layer.parameters():
                    p.requires_grad = False
            calls.clear()
            out = Ebb.Sequential(*layers)(Ebb.randn(2, 4))
            if n_frozen < 4:
                out.sum().backward()
            self.assertEqual([calls[i] for i in range(4)], [1 if i < n_frozen else 2 for i in range(4)])

    def test_integer_and_bool_outputs_require_none(self):
        class Classify(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.linear = Ebb.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x).tanh()
                return y.argmax(1), y > 0, y

        module = Classify()
        x = Ebb.randn(3, 4)
        plain = train(module, x)
        self.assert_same_step(plain, train(Ebb.checkpoint_wrapper(module), x))
        best, positive, y = module(x)
        self.assertEqual((best.requires_grad, positive.requires_grad, y.requires_grad), (False, False, True))
        self.assertEqual((best.dtype, positive.dtype), (Ebb.DType.I64, Ebb.DType.BOOL))

    def test_disabling_nests_and_is_of_the_thread(self):
        module = Ebb.checkpoint_wrapper(Residual(mlp()))
        seen = []

        def forward_counter():
            out = module(Ebb.randn(2, 8))
            seen.append(module.forward_counter)
            del out

        forward_counter()
        with Ebb.disable_checkpointing():
            with Ebb.disable_checkpointing():
                forward_counter()
            forward_counter()
            thread = threading.Thread(target=forward_counter)
            thread.start()
            thread.join()
            try:
                with Ebb.disable_checkpointing():
                    raise ValueError
            except ValueError:
                forward_counter()
        forward_counter()
        with Ebb.no_grad():
            forward_counter()
        self.assertEqual(seen, [1, 0, 0, 1, 0, 1, 0])

    def test_counters_of_several_calls_nests_and_drops(self):
        inner = Ebb.checkpoint_wrapper(mlp())

        class Thrice(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(self.inner(self.inner(x)))

        model = Ebb.checkpoint_wrapper(Thrice())
        x = Ebb.randn(2, 8)
        a, b = model(x), model(x)
        self.assertEqual(model.forward_counter, 2)
        self.assert_counters(inner, 8)
        b.sum().backward()
        self.assert_counters(inner, 4)
        del a
        gc.collect()
        self.assert_counters(model)


class State(CheckpointCase):
    def test_it_knows_where_it_is_inside_nested_wrappers(self):
        seen, elsewhere = [], []

        class Where(Ebb.Module):
            def __init__(self, name, inner=None):
                super().__init__()
                self.name, self.inner = name, inner

            def forward(self, x):
                y = x.sin()
                if self.inner is not None:
                    y = self.inner(y)
                seen.append(self.name + "c" * Ebb.is_checkpointing() + "r" * Ebb.is_recomputing())
                thread = threading.Thread(
                    target=lambda: elsewhere.append(Ebb.is_checkpointing() or Ebb.is_recomputing()))
                thread.start()
                thread.join()
                return y.exp()

        c = Where("c")
        b = Ebb.checkpoint_wrapper(Where("b", c))
        a = Ebb.checkpoint_wrapper(Where("a", b))
        x = Ebb.randn(3, requires_grad=True)
        a(x).sum().backward()
        self.assertEqual(seen, ["cc", "bc", "ac", "ccr", "bcr", "ar", "cr", "br"])
        self.assertEqual(set(elsewhere), {False})
        self.assertFalse(Ebb.is_checkpointing() or Ebb.is_recomputing())

    def test_modes_are_those_of_the_forward_and_put_back(self):
        seen = []

        class Modes(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.linear = Ebb.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                seen.append((Ebb.is_grad_enabled(), Ebb.is_autocast_enabled(), self.training, self.linear.training))
                if len(seen) == 4:
                    raise ValueError("told so")
                return y.tanh()

        module = Ebb.checkpoint_wrapper(Modes())
        for fails in (False, True):
            module.train()
            module.linear.eval()
            with Ebb.autocast():
                out = module(Ebb.randn(2, 4)).float().sum()
            module.eval()
            module.linear.train()
            with Ebb.no_grad():
                if fails:
                    with self.assertRaises(ValueError):
                        out.backward()
                else:
                    out.backward()
                self.assertFalse(Ebb.is_grad_enabled())
            self.assertFalse(Ebb.is_autocast_enabled())
            self.assertEqual((module.training, module.linear.training), (False, True))
        self.assertEqual(set(seen), {(True, True, True, False)})
        self.assertEqual(len(seen), 4)

    def test_random_numbers_come_again_unless_told_otherwise(self):
        x = Ebb.randn(16, 8)
        own = Ebb.Generator.new(5)

        class Drops(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.mlp = mlp()

            def forward(self, x):
                return Ebb.dropout(self.mlp(x), 0.5, True, own).sin()

        def step(**options):
            Ebb.manual_seed(3)
            own.set_state(5, 0)
            module = Drops()
            if options:
                Ebb.checkpoint_wrapper(module, **options)
            return train(module, x), own.get_offset()

        plain, offset = step()
        wrapped, offset_wrapped = step(preserve_rng_state=True)
        self.assert_same_step(plain, wrapped)
        self.assertEqual(offset, offset_wrapped)
        other, offset_other = step(preserve_rng_state=False)
        self.assertGreater(offset_other, offset)
        self.assertFalse(Ebb.Tensor.equal(other[0][1], plain[0][1]))

    def test_running_statistics_move_once_a_step(self):
        def step(*wrappers):
            Ebb.manual_seed(1)
            model = Ebb.Sequential(Ebb.Linear(8, 8), Ebb.BatchNorm1d(8), Ebb.Tanh(), Ebb.BatchNorm1d(8))
            for wrap in wrappers:
                wrap(model)
            outcome = [train(model, Ebb.ones(6, 8) * 2 + Ebb.arange(0, 8)) for _ in range(2)][-1]
            return outcome[0] + list(model.state_dict().values()), outcome[1]

        def each(model):
            Ebb.checkpoint_wrap_each(model, Ebb.BatchNorm1d)

        plain = step()
        for wrappers in ((Ebb.checkpoint_wrapper,), (each,), (each, Ebb.checkpoint_wrapper)):
            self.assert_same_step(plain, step(*wrappers))


def in_each_mode(test):
    """Runs a test with a function that casts what it is given, in f32, bf16 and under autocast at 1 and 2 threads."""

    def run(self):
        for dtype, autocast in (("f32", False), ("bf16", False), ("f32", True)):
            for threads in (1, 2):
                Ebb.set_num_threads(threads)
                with self.subTest(dtype=dtype, autocast=autocast, threads=threads), Ebb.autocast(enabled=autocast):
                    test(self, lambda value: value.bfloat16() if dtype == "bf16" else value)

    return run


class Graphs(CheckpointCase):
    @in_each_mode
    def test_nested_python_modules_give_the_same(self, cast):
        class Level(Ebb.Module):
            def __init__(self, inner=None):
                super().__init__()
                self.gain, self.inner, self.calls = Ebb.Parameter(Ebb.randn(8)), inner, 0

            def forward(self, x, *, extra):
                self.calls += 1
                y = x * self.gain
                if self.inner is not None:
                    y = self.inner(y, extra=extra)["y"]
                return {"y": Ebb.dropout(y.tanh(), 0.2) + extra[0], "n": 3}

        Ebb.manual_seed(1)
        levels = []
        for _ in range(6):
            levels.append(Level(levels[-1] if levels else None))
        model = cast(levels[-1])
        x, extra = cast(Ebb.randn(3, 8)), cast(Ebb.randn(8))
        x.requires_grad = extra.requires_grad = True
        plain = train(model, x, extra=[extra])
        for n_wrapped in range(1, 7):
            for level in levels:
                level.calls = 0
            Ebb.checkpoint_wrapper(levels[n_wrapped - 1])
            self.assert_same_step(plain, train(model, x, extra=[extra]))
            self.assert_counters(model)
            self.assertEqual([level.calls for level in levels],
                             [1 + max(0, n_wrapped - i) for i in range(6)])

    @in_each_mode
    def test_ways_of_backward(self, cast):
        Ebb.manual_seed(1)
        lower, upper = cast(mlp()), cast(mlp())
        x = cast(Ebb.randn(3, 8))
        x.requires_grad = True
        results = []
        for wrapped in (False, True):
            if wrapped:
                Ebb.checkpoint_wrapper(lower)
                Ebb.checkpoint_wrapper(upper)
            Ebb.manual_seed(2)
            hidden = lower(x)
            loss = upper(hidden).float().square().sum()
            grads = list(Ebb.grad(loss, [hidden, x, upper[0].weight], retain_graph=True))
            loss.backward(retain_graph=True)
            loss.backward(inputs=[upper[0].weight], retain_graph=True)
            loss.backward()
            results.append(grads + [p.grad for p in lower.parameters() + upper.parameters()] + [x.grad])
            x.grad = None
            for module in (lower, upper):
                module.zero_grad()
        for a, b in zip(*results):
            self.assert_same(a, b)
        self.assertEqual(Ebb.checkpoint_get_n_recomputes(lower), 3)
        self.assertEqual(Ebb.checkpoint_get_n_recomputes(upper), 4)

    def test_first_recompute_is_kept_when_asked(self):
        module = Ebb.checkpoint_wrapper(mlp(), retain_recomputed=True)
        loss = module(Ebb.randn(3, 8)).square().sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        self.assertEqual(Ebb.checkpoint_get_n_recomputes(module), 1)

    @in_each_mode
    def test_backward_inside_a_forward(self, cast):
        class Force(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.gain = Ebb.Parameter(Ebb.randn(8))

            def forward(self, x):
                point = x.detach()
                point.requires_grad = True
                force, = Ebb.grad((point * self.gain).sin().sum(), [point])
                assert force.shape == x.shape
                return (x * self.gain + force).tanh()

        Ebb.manual_seed(1)
        force = cast(Force())
        model = Ebb.Sequential(cast(mlp()), force, cast(mlp()))
        x = cast(Ebb.randn(3, 8))
        plain = train(model, x)
        for wrapped in (force, model, model):
            Ebb.checkpoint_wrapper(wrapped)
            self.assert_same_step(plain, train(model, x))

    def test_some_outputs_or_none_are_used(self):
        class Fork(Ebb.Module):
            def __init__(self):
                super().__init__()
                self.gain = Ebb.Parameter(Ebb.randn(8))

            def forward(self, x):
                a = (x * self.gain).tanh()
                return {"a": a, "b": [a.exp(), x.sin()]}

        module = Fork()
        x = Ebb.randn(3, 8, requires_grad=True)
        for pick in (lambda r: r["a"], lambda r: r["b"][0], lambda r: r["b"][1], lambda r: None):
            results = []
            for wrapped in (False, True):
                if wrapped:
                    Ebb.checkpoint_wrapper(module)
                module.zero_grad()
                x.grad = None
                used = pick(module(x))
                if used is not None:
                    used.square().sum().backward()
                del used
                results.append([module.gain.grad, x.grad])
                self.assert_counters(module)
                Ebb.checkpoint_unwrap(module)
            for a, b in zip(*results):
                self.assertEqual(a is None, b is None)
                if a is not None:
                    self.assert_same(a, b)

    def test_two_threads_train_two_models(self):
        outcomes = [None, None]

        def work(i):
            Ebb.set_num_threads(1)
            Ebb.manual_seed(7)
            model = Residual(mlp())
            x = Ebb.randn(4, 8)
            plain = train(model, x)
            Ebb.checkpoint_wrap_each(model, Ebb.Linear)
            Ebb.checkpoint_wrapper(model)
            outcomes[i] = plain, [train(model, x) for _ in range(20)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for plain, wrapped in outcomes:
            self.assert_same_step(outcomes[0][0], plain)
            for outcome in wrapped:
                self.assert_same_step(plain, outcome)


class Failures(CheckpointCase):
    """The exception that was raised comes out; the step is as if it had not begun; the next one is right."""

    def places(self, exception):
        """Each place that can fail: whether backward is where, and the options that make it fail once it is armed."""
        armed = []

        def fail(*_):
            if armed:
                armed.clear()
                raise exception

        class Plots(Ebb.Module):
            def __init__(self, recompute):
                super().__init__()
                self.mlp, self.recompute = mlp(), recompute

            def forward(self, x):
                y = self.mlp(x).tanh()
                if self.recompute is Ebb.is_recomputing():
                    fail()
                return y.exp()

        class Store(Ebb.SavedTensorHooks):
            def __init__(self, unpack):
                super().__init__()
                self.unpack = unpack

            def do_pack(self, tensor):
                if not self.unpack:
                    fail()
                return Ebb.Handle.new(tensor)

            def do_unpack(self, handle):
                if self.unpack:
                    fail()
                return handle.get_tensor()

        def policy(op, ordinal, n_bytes):
            fail()
            return Ebb.CheckpointPolicy.MUST_RECOMPUTE

        def before(module, phase):
            if phase == "begin":
                fail()

        def after(module, phase):
            if phase == "end":
                fail()

        for recompute, options in ((False, {}), (True, {}), (None, {"policy": policy}),
                                   (None, {"on_recompute": before}), (None, {"on_recompute": after}),
                                   (None, {"store": Store(False)}), (None, {"store": Store(True)})):
            Ebb.manual_seed(1)
            module = Plots(recompute)
            yield module, options, armed

    def test_every_place_fails_as_itself(self):
        x = Ebb.randn(3, 8)
        for exception in (ValueError("told so"), KeyboardInterrupt(), KeyError(3)):
            for depth in range(2):
                for module, options, armed in self.places(exception):
                    plain = train(module, x)
                    module.zero_grad()
                    Ebb.checkpoint_wrapper(module, **options)
                    if depth:
                        Ebb.checkpoint_wrapper(module, **options)
                    before = tensor_bytes()
                    armed.append(True)
                    try:
                        loss = module(x).square().sum()
                        loss.backward()
                    except BaseException as caught:
                        self.assertIs(caught, exception)
                    else:
                        self.fail(f"nothing was raised: {options}")
                    finally:
                        loss = None
                    self.assertEqual(armed, [])
                    exception.__traceback__ = None
                    module.zero_grad()
                    self.assertEqual(tensor_bytes(), before)
                    self.assert_counters(module)
                    self.assertTrue(all(m.training for m in module.modules()))
                    self.assertTrue(Ebb.is_grad_enabled())
                    self.assertFalse(Ebb.is_checkpointing() or Ebb.is_recomputing())
                    self.assert_same_step(plain, train(module, x))

    def test_generators_are_where_they_were_after_a_failed_call(self):
        generator = Ebb.Generator.get_default()
        for module, options, armed in self.places(ValueError("told so")):
            Ebb.checkpoint_wrapper(module, **options)
            Ebb.manual_seed(8)
            armed.append(True)
            offset = generator.get_offset()
            try:
                loss = module(Ebb.ones(3, 8)).square().sum()
                offset = generator.get_offset()
                loss.backward()
            except ValueError:
                self.assertEqual(generator.get_offset(), offset)


if __name__ == "__main__":
    main()
