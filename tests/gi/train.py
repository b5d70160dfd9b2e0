"""Models built, wrapped and trained from Python."""
import gc
import math
import weakref

import numpy as np
from gi.repository import GLib
from support import Ebb, Residual, TestCase, main, tensor_bytes


def mlp():
    return Ebb.Sequential(Ebb.Linear(8, 16), Ebb.Gelu("tanh"), Ebb.Dropout(0.1), Ebb.LayerNorm(16), Ebb.Linear(16, 4))


def gpt():
    config = Ebb.GptConfig.new()
    config.vocab = 32
    config.context = 16
    config.width = 16
    config.heads = 2
    config.layers = 2
    config.dropout = 0.1
    return Ebb.Gpt(config)


def bert():
    config = Ebb.BertConfig.new_preset("tiny")
    config.vocab = 32
    config.context = 16
    config.width = 16
    config.heads = 2
    config.layers = 2
    config.hidden = 32
    return Ebb.Bert(config)


def train_mlp(wrap, steps=8):
    Ebb.manual_seed(3)
    model = mlp()
    wrap(model)
    optimizer = Ebb.AdamW(model, 1e-2)
    x, targets = Ebb.randn(32, 8), Ebb.randint(0, 4, 32)
    losses = []
    for _ in range(steps):
        loss = Ebb.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def train_gpt(wrap, steps=6):
    Ebb.manual_seed(4)
    model = gpt()
    wrap(model)
    optimizer = Ebb.AdamW(model, 1e-2, weight_decay=0.1)
    tokens = Ebb.randint(0, 32, 2, 17)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    losses = []
    for _ in range(steps):
        loss = Ebb.cross_entropy(model(inputs).reshape(-1, 32), targets.reshape(-1))
        loss.backward()
        norm = optimizer.clip_grad_norm(1.0).item()
        assert isinstance(norm, float) and norm > 0, norm
        largest = optimizer.clip_grad_norm(1e9, norm_type="inf").item()
        assert 0 < largest <= min(norm, 1.0) < optimizer.clip_grad_norm(1e9, 1).item()
        whole = Ebb.clip_grad_norm(model.parameters(), 1e9).item()
        assert abs(whole - norm) <= 1e-6 * norm < Ebb.clip_grad_norm(model.parameters(), 1e9, norm_type=1).item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


def train_bert(wrap, steps=6):
    """The model predicts every third token, and the second row ends with padding."""
    Ebb.manual_seed(4)
    model = bert()
    wrap(model)
    optimizer = Ebb.AdamW(model, 1e-2, weight_decay=0.1)
    tokens = np.random.default_rng(5).integers(1, 32, (2, 12))
    targets = np.where(np.arange(12) % 3 == 0, tokens, -100)
    inputs = np.where(targets == -100, tokens, 0)
    mask = np.ones((2, 12), np.bool_)
    mask[1, 8:] = False
    targets[~mask] = -100
    inputs, targets, mask = map(Ebb.from_numpy, (inputs, targets, mask))
    losses = []
    for _ in range(steps):
        loss = model.loss(inputs, None, mask, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


WRAPPERS = {
    "none": lambda model: None,
    "whole": lambda model: Ebb.checkpoint_wrapper(model),
    "whole, checked": lambda model: Ebb.checkpoint_wrapper(model, determinism_check="values", early_stop=False),
    "selective": lambda model: Ebb.checkpoint_wrapper(model, policy="selective"),
    "policy": lambda model: Ebb.checkpoint_wrapper(
        model, policy=lambda op, ordinal, n_bytes: Ebb.CheckpointPolicy.MUST_SAVE if ordinal % 2
        else Ebb.CheckpointPolicy.MUST_RECOMPUTE),
    "each linear": lambda model: Ebb.checkpoint_wrap_each(model, Ebb.Linear),
    "picked": lambda model: Ebb.checkpoint_wrap_each(model, lambda module: isinstance(module, (Ebb.Linear, Ebb.Gelu))),
    "property": lambda model: setattr(model.props, "activation_checkpointing", True),
}


class Training(TestCase):
    def check(self, train):
        plain, model = train(WRAPPERS["none"])
        self.assertLess(plain[-1], plain[0])
        expected = model.state_dict()
        for name, wrap in WRAPPERS.items():
            losses, model = train(wrap)
            self.assertEqual(losses, plain, name)
            for key, value in model.state_dict().items():
                self.assertTrue(Ebb.Tensor.equal(value, expected[key]), f"{name}: {key}")

    def test_an_mlp_trains_the_same_however_it_is_wrapped(self):
        self.check(train_mlp)

    def test_a_gpt_trains_the_same_however_it_is_wrapped(self):
        self.check(train_gpt)

    def test_a_bert_trains_the_same_however_it_is_wrapped(self):
        self.check(train_bert)

    def test_a_bert_has_its_published_names(self):
        model = bert()
        state = model.to_published_state()
        self.assertIn("bert.encoder.layer.1.attention.self.query.weight", state)
        other = bert()
        other.load_published(state)
        tokens = Ebb.randint(0, 32, 2, 12)
        model.eval()
        other.eval()
        self.assert_same(model(tokens, segments=None), other(tokens))

    def test_weights_need_not_be_drawn_before_they_are_loaded(self):
        Ebb.manual_seed(3)
        drawn = gpt()
        expected = Ebb.randn(4)
        Ebb.manual_seed(3)
        with Ebb.skip_initialization():
            self.assertTrue(Ebb.is_initialization_skipped())
            model = gpt()
        self.assertFalse(Ebb.is_initialization_skipped())
        self.assert_same(Ebb.randn(4), expected)
        model.load_state_dict(drawn.state_dict())
        tokens = Ebb.randint(0, 32, 2, 12)
        self.assert_same(model.eval()(tokens), drawn.eval()(tokens))

    def test_wrapping_blocks_saves_activations(self):
        def peak(wrap):
            Ebb.manual_seed(1)
            model = Ebb.Sequential(*(Ebb.TransformerBlock(32, 4) for _ in range(4)))
            wrap(model)
            gc.collect()
            Ebb.memory_reset_peaks(Ebb.Device.get_cpu())
            model(Ebb.randn(4, 32, 32)).sum().backward()
            return Ebb.memory_stats()["activation"]["peak"]

        self.assertLess(peak(lambda model: Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock)),
                        peak(lambda model: None) / 2)

    def test_a_gradient_reads_as_numpy(self):
        model = Ebb.Linear(3, 2)
        x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
        model(Ebb.from_numpy(x)).sum().backward()
        np.testing.assert_array_equal(model.weight.grad.numpy(), np.tile(x.sum(0), (2, 1)))

    def test_a_module_in_python_gives_the_same_gradients_wrapped(self):
        def run(wrapped):
            Ebb.manual_seed(1)
            module = Residual(Ebb.Linear(64, 64))
            m = Ebb.checkpoint_wrapper(module, offload_to_cpu=True) if wrapped else module
            self.assertIs(m, module)
            out, info = m(Ebb.randn(8, 64), mask=None)
            self.assertEqual(info["shape"], [8, 64])
            self.assertEqual(m.forward_counter, 1 if wrapped else 0)
            (out.sum() + info["aux"][0].square().sum()).backward()
            self.assertEqual(m.forward_counter, 0)
            return {name: p.grad for name, p in m.named_parameters()}

        plain, wrapped = run(False), run(True)
        self.assertEqual(list(plain), ["gain", "inner.weight", "inner.bias"])
        for name, grad in plain.items():
            self.assert_same(grad, wrapped[name])

    def test_it_knows_where_it_is(self):
        seen = []

        class Watch(Ebb.Module):
            def forward(self, x):
                seen.append((Ebb.is_checkpointing(), Ebb.is_recomputing()))
                return (x * x).tanh()

        x = Ebb.ones(3, requires_grad=True)
        module = Ebb.checkpoint_wrapper(Watch())
        module(x).sum().backward()
        self.assertEqual(seen, [(True, False), (False, True)])
        del seen[:]
        with Ebb.disable_checkpointing():
            module(x).sum().backward()
        with Ebb.no_grad():
            module(x)
        self.assertEqual(seen, [(False, False)] * 2)

    def test_a_function_is_checkpointed_like_a_module(self):
        linear = Ebb.Linear(4, 4)
        calls = []

        def function(x, *, scale, extra):
            calls.append(extra)
            return linear(x).tanh() * scale, {"kept": x}

        x = Ebb.randn(2, 4, requires_grad=True)
        out, rest = Ebb.checkpoint(function, x, scale=2.0, extra=["a"])
        out.sum().backward()
        self.assertEqual(calls, [["a"]] * 2)
        self.assertEqual(rest["kept"].shape, (2, 4))
        found, x.grad = x.grad, None
        (linear(x).tanh() * 2.0).sum().backward()
        self.assert_same(found, x.grad)

    def test_a_sequence_is_checkpointed_in_segments(self):
        model = Ebb.Sequential(*(Ebb.Linear(4, 4) for _ in range(4)))
        x = Ebb.randn(2, 4)
        self.assert_same(Ebb.checkpoint_sequential(model, 2, x), model(x))

    def test_training_leaves_no_memory_behind(self):
        before = tensor_bytes()
        for train in (train_mlp, train_gpt):
            for wrap in (WRAPPERS["none"], WRAPPERS["each linear"], WRAPPERS["whole"]):
                losses, model = train(wrap, 2)
                gone = weakref.ref(model)
                del model
                gc.collect()
                self.assertIsNone(gone())
                self.assertEqual(tensor_bytes(), before)

    def test_graphs_that_no_backward_reaches_are_freed(self):
        before = tensor_bytes()
        module = Ebb.checkpoint_wrapper(Residual(Ebb.Linear(8, 8)))
        out, info = module(Ebb.randn(2, 8))
        self.assertEqual(module.forward_counter, 1)
        del out, info
        gc.collect()
        self.assertEqual(module.forward_counter, 0)
        del module
        self.assertEqual(tensor_bytes(), before)

    def test_autocast_computes_products_in_bfloat16(self):
        linear = Ebb.Linear(4, 4)
        with Ebb.autocast():
            out = linear(Ebb.ones(2, 4))
        self.assertEqual(out.dtype, Ebb.bfloat16)
        out.float().sum().backward()
        self.assertEqual(linear.weight.grad.dtype, Ebb.float32)

    def test_moments_take_fewer_bytes_by_keyword(self):
        def bytes_a_parameter(**options):
            before = Ebb.memory_stats()["optimizer"]["current"]
            linear = Ebb.Linear(256, 256, bias=False)
            optimizer = Ebb.AdamW(linear, 1e-3, **options)
            linear(Ebb.randn(2, 256)).sum().backward()
            optimizer.step()
            return (Ebb.memory_stats()["optimizer"]["current"] - before) / 256 ** 2, optimizer

        for name, most in ("f32", 8.1), ("bf16", 4.1), ("eight-bit", 2.1):
            n_bytes, optimizer = bytes_a_parameter(moment_format=name)
            self.assertLess(most - 0.2, n_bytes)
            self.assertLess(n_bytes, most)
            self.assertEqual(optimizer.props.moment_format.value_nick, name)
        self.assertEqual(Ebb.MomentFormat.EIGHT_BIT, optimizer.props.moment_format)

    def test_steps_in_backward_give_the_same_weights(self):
        def train(**options):
            Ebb.manual_seed(4)
            model = gpt()
            Ebb.checkpoint_wrap_each(model, Ebb.TransformerBlock)
            optimizer = Ebb.AdamW(model, 1e-2, **options)
            tokens = Ebb.randint(0, 32, 2, 16)
            for _ in range(3):
                Ebb.cross_entropy(model(tokens).reshape(-1, 32), tokens.reshape(-1)).backward()
                left = [p for p in model.parameters() if p.grad is not None]
                optimizer.step()
                optimizer.zero_grad()
            return model.state_dict(), left, optimizer

        plain, left, _ = train()
        self.assertTrue(left)
        early, left, optimizer = train(step_in_backward=True)
        self.assertFalse(left)
        for name, weight in plain.items():
            np.testing.assert_array_equal(weight.numpy(), early[name].numpy())
        with self.assertRaisesRegex(GLib.Error, "step-in-backward"):
            optimizer.clip_grad_norm(1.0)

    def test_properties_of_an_optimizer_are_attributes(self):
        optimizer = Ebb.AdamW(Ebb.Linear(2, 2), 0.1)
        optimizer.lr = 0.25
        optimizer.moment_format = "bf16"
        optimizer.note = "mine"
        self.assertEqual((optimizer.lr, optimizer.props.lr), (0.25, 0.25))
        self.assertEqual(optimizer.props.moment_format, Ebb.MomentFormat.BF16)
        self.assertEqual(optimizer.note, "mine")
        with self.assertRaisesRegex(ValueError, "moment_format is '8bit': must be one of 'f32', 'bf16', 'eight-bit'"):
            optimizer.moment_format = "8bit"
        with self.assertRaisesRegex(ValueError, "moment_format is '8bit'"):
            Ebb.AdamW(Ebb.Linear(2, 2), 0.1, moment_format="8bit")
        with self.assertRaisesRegex(AttributeError, "AdamW has no attribute 'rate'"):
            optimizer.rate

    def test_a_list_of_parameters_is_moved_as_the_module_is(self):
        for make in (Ebb.SGD, Ebb.Adam, Ebb.AdamW):
            results = []
            for choose in (lambda m: m, lambda m: m.parameters(), lambda m: iter(m.parameters()),
                           lambda m: [{"params": m.parameters()}],
                           lambda m: [{"params": m.weight}, {"params": [m.bias], "lr": 0.1}]):
                Ebb.manual_seed(5)
                linear = Ebb.Linear(3, 3)
                optimizer = make(choose(linear), lr=0.1, weight_decay=0.01)
                for _ in range(3):
                    linear(Ebb.ones(2, 3)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                results.append(linear.state_dict())
                state = optimizer.state_dict()
                optimizer.load_state_dict(state)
            for result in results[1:]:
                for name, tensor in results[0].items():
                    self.assert_same(result[name], tensor)

    def test_groups_have_their_own_rates(self):
        linear = Ebb.Linear(2, 2)
        optimizer = Ebb.SGD([{"params": [linear.weight], "lr": 0.5}, {"params": linear.bias, "weight_decay": 0.25}],
                            lr=2)
        groups = optimizer.param_groups
        self.assertEqual([(g["lr"], g["weight_decay"], len(g["params"])) for g in groups], [(0.5, 0, 1), (2, 0.25, 1)])
        first = Ebb.SGD([{"params": linear.weight, "weight_decay": 0.5}], lr=2, weight_decay=0.125).param_groups[0]
        self.assertEqual((first["lr"], first["weight_decay"]), (2, 0.5))
        self.assert_same(groups[1]["params"][0], linear.bias)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        self.assertEqual([g["lr"] for g in optimizer.param_groups], [0.25, 1])
        optimizer.add_param_group({"params": [Ebb.ones(3, requires_grad=True)], "lr": 0.125})
        self.assertEqual([g["lr"] for g in optimizer.param_groups], [0.25, 1, 0.125])
        self.assertEqual(Ebb.SGD([{"params": linear.bias, "lr": np.float32(0.5)}], lr=2).param_groups[0]["lr"], 0.5)
        for value in (-1.0, math.inf, math.nan):
            with self.assertRaisesRegex(ValueError, "lr is .*: must be a number of 0 or more"):
                Ebb.SGD([{"params": linear.bias, "lr": value}], lr=2)
        before = linear.weight.clone().detach()
        linear(Ebb.ones(1, 2)).sum().backward()
        optimizer.step()
        self.assert_same(linear.weight.detach(), before - 0.25)
        optimizer.zero_grad(set_to_none=False)
        self.assertEqual(linear.weight.grad.tolist(), [[0, 0], [0, 0]])
        optimizer.zero_grad()
        self.assertIsNone(linear.weight.grad)

    def test_arguments_are_those_of_pytorch(self):
        linear = Ebb.Linear(2, 2)
        adam = Ebb.Adam(linear.parameters(), 1e-2, (0.8, 0.95), 1e-6, 0.1)
        self.assertEqual((adam.lr, adam.beta1, adam.beta2, adam.eps, adam.weight_decay), (1e-2, 0.8, 0.95, 1e-6, 0.1))
        sgd = Ebb.SGD(linear.parameters(), 0.1, 0.9, 0.2, 0.3, True)
        self.assertEqual((sgd.lr, sgd.momentum, sgd.dampening, sgd.weight_decay, sgd.nesterov),
                         (0.1, 0.9, 0.2, 0.3, True))
        self.assertEqual((Ebb.Adam(linear).weight_decay, Ebb.AdamW(linear).weight_decay), (0, 0.01))
        self.assertEqual(Ebb.Adam(module=linear, lr=0.5).lr, 0.5)
        self.assertTrue(issubclass(Ebb.AdamW, Ebb.Adam))

    def test_an_optimizers_mistakes_are_told_at_the_call(self):
        linear = Ebb.Linear(2, 2)
        optimizer, nan = Ebb.AdamW(linear), float("nan")
        for call, error, words in (
                (lambda: Ebb.AdamW(linear, nan), Ebb.Error, "AdamW: lr is nan: it must be a number of 0 or more"),
                (lambda: Ebb.AdamW(linear, -1), Ebb.Error, "AdamW: lr is -1: it must be a number of 0 or more"),
                (lambda: Ebb.SGD(linear, momentum=-1), Ebb.Error, "Sgd: momentum is -1: it must be a number of 0 or "
                                                                   "more"),
                (lambda: Ebb.Adam(linear, betas=(0.9, 1)), Ebb.Error,
                 "Adam: beta2 is 1: it must be a number of 0 or more and less than 1"),
                (lambda: Ebb.Adam(linear, betas=0.9), TypeError,
                 "Adam: betas is 0.9: must be two numbers, as (0.9, 0.999)"),
                (lambda: Ebb.Adam(linear, betas=(0.9, 0.9), beta1=0.5), TypeError,
                 "Adam() got betas and beta1: leave one of both out"),
                (lambda: Ebb.AdamW(linear, "1e-3"), TypeError, "AdamW: lr is '1e-3': must be a number"),
                (lambda: setattr(optimizer, "lr", -1), Ebb.Error, "AdamW: lr is -1: it must be a number of 0 or "
                                                                   "more"),
                (lambda: setattr(optimizer, "eps", nan), Ebb.Error, "AdamW: eps is nan: it must be a number of 0 or "
                                                                     "more"),
                (lambda: Ebb.AdamW(), TypeError, "AdamW() needs the module or the parameters that it moves, as "
                                                 "AdamW(model.parameters(), lr=1e-3)"),
                (lambda: Ebb.AdamW([]), Ebb.Error, "AdamW: the list of parameters is empty"),
                (lambda: Ebb.AdamW([3]), TypeError, "AdamW: params: item 0 is 3: it must be a tensor"),
                (lambda: Ebb.AdamW(linear.weight), TypeError,
                 "AdamW: params is a tensor: it must be a module, a list of parameters or a list of groups, as "
                 "[{\"params\": [weight], \"lr\": 1e-3}]"),
                (lambda: Ebb.AdamW(linear.named_parameters()), TypeError,
                 "AdamW: params: item 0 is a name and a parameter: write module.parameters()"),
                (lambda: Ebb.AdamW([{"lr": 1}]), ValueError, "AdamW: params[0] has no \"params\""),
                (lambda: Ebb.AdamW([{"params": [linear.weight], "lr": nan}]), ValueError,
                 "AdamW: params[0]: lr is nan: must be a number of 0 or more"),
                (lambda: Ebb.AdamW([{"params": [linear.weight], "betas": (0, 0)}]), ValueError,
                 "AdamW: params[0] has 'betas': a group has params, lr, weight_decay; the rest is the optimizer's"),
                (lambda: Ebb.AdamW([linear.weight * 2]), Ebb.Error,
                 "AdamW: parameter 0 of 1 was computed: only leaves can be moved"),
                (lambda: optimizer.add_param_group({"params": [linear.weight]}), Ebb.Error,
                 "AdamW: parameter 0 of 1 is in a group of this optimizer already"),
                (lambda: Ebb.SGD(linear, amsgrad=True), TypeError, "SGD() has no argument 'amsgrad'")):
            with self.assertRaises(error) as caught:
                call()
            self.assertTrue(str(caught.exception).replace("Sgd()", "SGD()").startswith(words), caught.exception)
        self.assertEqual((optimizer.lr, optimizer.eps), (1e-3, 1e-8))

    def test_schedules_move_the_learning_rate(self):
        optimizer = Ebb.AdamW(Ebb.Linear(2, 2), 0.1)
        schedule = Ebb.CosineSchedule(2, 10, 0.1)
        schedule.apply(optimizer)
        self.assertLess(optimizer.props.lr_scale, 1)


if __name__ == "__main__":
    main()
