"""What PyTorch's users expect beside single calls: identity, gradients of small ops, namespaces, and others' names.

Values of single calls are compared with PyTorch's by tests/scripts/habits.py.
"""
import gc
import math
import os
import tempfile

import ebb
import ebb.compat
import ebb.nn.functional as F
from ebb import nn, optim
from ebb.utils import data
from support import Ebb, TestCase, main


class Identity(TestCase):
    def test_a_tensor_of_a_module_is_one_object(self):
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        first = net[0].weight
        self.assertIs(net[0].weight, first)
        self.assertIs(net.parameters()[0], first)
        self.assertIs(dict(net.named_parameters())["0.weight"], first)
        self.assertIn(first, list(net.parameters()))
        self.assertEqual(len({*net.parameters(), *net.parameters()}), 4)
        rates = {parameter: i for i, parameter in enumerate(net.parameters())}
        self.assertEqual(rates[net[1].bias], 3)
        self.assertIs(optim.SGD(net.parameters(), lr=1).param_groups[0]["params"][0], first)
        net(ebb.ones(1, 3)).sum().backward()
        gradient = first.grad
        self.assertIs(net[0].weight.grad, gradient)
        gradient.note = "kept"
        self.assertEqual(first.grad.note, "kept")

    def test_what_only_c_holds_comes_back_as_another_object(self):
        layer = nn.Linear(2, 2)
        layer.weight.note = 1
        gc.collect()
        self.assertFalse(hasattr(layer.weight, "note"))

    def test_arguments_and_results_pass_through_modules(self):
        class Same(nn.Module):
            def forward(self, a, pair, *, named):
                return {"a": a, "pair": pair, "named": named}

        x, y, z = ebb.ones(1), ebb.ones(2), ebb.ones(3)
        result = Same()(x, [y, z], named=x)
        self.assertIs(result["a"], x)
        self.assertIs(result["pair"][1], z)
        self.assertIs(result["named"], x)
        self.assertIs(x.contiguous(), x)
        self.assertIs(x.float().to("cpu"), x)
        self.assertIsNot(x.detach(), x)

    def test_many_dead_tensors_leave_nothing_behind(self):
        from gi.overrides._ebb_errors import _Tensors
        x = ebb.ones(1)
        kept = [x + i for i in range(9000)]
        del kept
        for i in range(9000):
            x = x + i
        self.assertLess(len(_Tensors.seen), 20000)

    def test_a_parameter_is_a_tensor_before_a_module_has_it(self):
        given = ebb.ones(3)
        parameter = nn.Parameter(given)
        self.assertIsInstance(parameter, nn.Parameter)
        self.assertIsInstance(parameter, ebb.Tensor)
        self.assertFalse(given.requires_grad)
        nn.init.constant_(parameter, 2)
        self.assertEqual(given.tolist(), [2, 2, 2])
        module = nn.Module()
        module.scale = parameter
        self.assertIs(module.scale, parameter)
        (parameter * 3).sum().backward()
        self.assertEqual(module.scale.grad.tolist(), [3, 3, 3])
        module.mean = ebb.Buffer(given, persistent=False)
        self.assertEqual(list(module.state_dict()), ["scale"])
        self.assertEqual([name for name, _ in module.named_buffers()], ["mean"])


class Gradients(TestCase):
    def check(self, function, *values):
        """Compares a gradient with differences of the function in f32, which are good to 1 %."""
        x = ebb.tensor(list(values), requires_grad=True)
        function(x).sum().backward()
        for i, value in enumerate(values):
            step = 1e-2
            below, above = ([*values[:i], value + d, *values[i + 1:]] for d in (-step, step))
            slope = (function(ebb.tensor(above)).sum().item() - function(ebb.tensor(below)).sum().item()) / (2 * step)
            self.assertAlmostEqual(x.grad[i].item(), slope, delta=0.01 * max(1, abs(slope)))

    def test_small_ops_have_their_derivatives(self):
        for name in ("erf", "erfc", "log1p", "expm1", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "atanh",
                     "exp2", "log2", "log10", "reciprocal", "logit", "softplus", "deg2rad", "sinc", "frac"):
            with self.subTest(name):
                self.check(getattr(Ebb.Tensor, name), 0.31, 0.62)
        self.check(lambda x: x.acosh(), 1.5, 2.5)
        self.check(lambda x: x % 0.4 + ebb.fmod(x, 0.3), 0.95, -0.55)
        self.check(lambda x: ebb.remainder(7.0, x), 1.3, 2.2)
        self.check(lambda x: x.atan2(x.flip(0)) * x, 0.5, 1.5)
        self.check(lambda x: x.logaddexp(x * x) + x.hypot(x + 1), 0.5, 1.5)

    def test_ops_along_a_dimension_have_their_derivatives(self):
        for name, call in (("cumsum", lambda x: x.cumsum(0) * x), ("cumprod", lambda x: x.cumprod(0)),
                           ("prod", lambda x: x.prod()), ("logsumexp", lambda x: x.logsumexp(0)),
                           ("diff", lambda x: x.diff().square()), ("median", lambda x: x.median()),
                           ("quantile", lambda x: x.quantile(0.3)), ("roll", lambda x: x.roll(1) * x),
                           ("cummax", lambda x: x.cummax(0).values), ("norm", lambda x: x.norm(3)),
                           ("unfold", lambda x: x.unfold(0, 2, 1).prod(1)), ("diag", lambda x: x.diag().sum(0) * x),
                           ("index_add", lambda x: x.index_add(0, ebb.tensor([0, 0]), x[1:]) * x),
                           ("kron", lambda x: x.kron(x)), ("logcumsumexp", lambda x: x.logcumsumexp(0))):
            with self.subTest(name):
                self.check(call, 0.5, -1.5, 2.25)
        self.check(lambda x: x.prod() + x.cumprod(0), 0.0, 1.5, 2.0)  # where a division by an element would fail

    def test_a_long_running_sum_is_made_of_blocks(self):
        x = ebb.randn(2, 1000, requires_grad=True)
        self.assertTrue(x.cumsum(1).allclose(x.detach().cumsum(1), 1e-4, 1e-4))
        x.cumsum(1)[:, -1].sum().backward()
        self.assertTrue(ebb.equal(x.grad, ebb.ones(2, 1000)))

    def test_losses_have_their_gradients(self):
        for loss in (lambda x: F.huber_loss(x, x * 0, delta=0.7), lambda x: F.smooth_l1_loss(x, x * 0),
                     lambda x: F.kl_div(x.log_softmax(0), ebb.tensor([0.2, 0.3, 0.5])), lambda x: F.mish(x),
                     lambda x: F.cross_entropy(x[None], ebb.tensor([1]), weight=ebb.tensor([1., 2., 3.])),
                     lambda x: F.gelu(x), lambda x: F.elu(x), lambda x: F.selu(x), lambda x: F.normalize(x, dim=0),
                     lambda x: F.layer_norm(x, (3,)) * x, lambda x: F.pad(x, (1, -1)).square()):
            self.check(loss, 0.6, -1.4, 2.2)

    def test_the_row_of_padding_gets_no_gradient(self):
        layer = nn.Embedding(4, 2, padding_idx=-3)
        self.assertEqual(layer.weight[1].tolist(), [0, 0])
        layer(ebb.tensor([1, 2, 1])).sum().backward()
        self.assertEqual(layer.weight.grad.tolist(), [[0, 0], [0, 0], [1, 1], [0, 0]])

    def test_integers_are_exact(self):
        big = 2**60 + 7
        x = ebb.tensor([big, -big])
        self.assertEqual((x % 10).tolist(), [big % 10, -big % 10])
        self.assertEqual((x // 10).tolist(), [big // 10, -big // 10])
        self.assertEqual(ebb.div(x, 10, rounding_mode="trunc").tolist(), [big // 10, -(big // 10)])
        self.assertEqual((x ^ 1).tolist(), [big ^ 1, -big ^ 1])
        self.assertEqual(x.cumsum(0).tolist(), [big, 0])
        self.assertEqual(ebb.tensor([2**31, 3]).prod().item(), 3 * 2**31)
        with self.assertRaisesRegex(ZeroDivisionError, r"write float\(\)"):
            x // 0

    def test_rounding_is_exact(self):
        values = [0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5, 3e9, -1e30, math.inf, -math.inf, 0.49999997]
        x = ebb.tensor(values)
        self.assertEqual(x.round().tolist()[:7], [0, 2, 2, 0, -2, 8388608, 3e9])
        self.assertEqual(x.floor().tolist()[:5], [0, 1, 2, -1, -2])
        self.assertEqual(x.ceil().tolist()[:5], [1, 2, 3, 0, -1])
        for call in (x.round(), x.floor(), x.ceil(), x.trunc()):
            self.assertEqual(call.tolist()[8:10], [math.inf, -math.inf])
        self.assertTrue(ebb.tensor(math.nan).round().isnan().item())


class Namespaces(TestCase):
    def test_a_name_that_is_not_there_says_what_to_write(self):
        for line, words in (("from ebb.nn import Conv2d", "compose ebb.Linear"), ("ebb.nn.LSTM", "compose ebb.Linear"),
                            ("from ebb.nn.functional import ctc_loss", "compose ops instead"),
                            ("from ebb.optim import Adagrad", "ebb.AdamW"), ("import ebb.utils.tensorboard", "instead"),
                            ("from ebb.utils.data import Dataloader", "did you mean 'DataLoader'"),
                            ("ebb.optim.lr_scheduler.CyclicLR", "write LambdaLR"), ("ebb.svd_lowrank", "numpy's"),
                            ("ebb.nn.utils.weight_norm", "instead"), ("ebb.huber_loss", "ebb.nn.functional.huber_loss"),
                            ("ebb.StepLR", "ebb.optim.lr_scheduler.StepLR"), ("ebb.nn.DDP", "ebb.replicate"),
                            ("ebb.ones(1).svd()", "compose ops instead")):
            with self.subTest(line), self.assertRaisesRegex((ImportError, AttributeError), words):
                exec(line)  # pylint: disable=exec-used

    def test_losses_are_modules(self):
        loss = nn.CrossEntropyLoss(weight=ebb.ones(3), label_smoothing=0.1)
        self.assertIsInstance(loss, ebb.Module)
        self.assertEqual(loss.to("sim").weight.device, "sim")
        self.assertEqual(repr(loss), "CrossEntropyLoss(ignore_index=-100, reduction='mean', label_smoothing=0.1)")
        self.assertEqual([name for name, _ in nn.Sequential(nn.MSELoss()).named_children()], ["0"])
        for made in (lambda: nn.MSELoss(reduce_to=1), lambda: nn.MSELoss("sum", 2)):
            with self.assertRaisesRegex(TypeError, r"MSELoss\(\) .*reduction"):
                made()
        with self.assertRaisesRegex(RuntimeError, "dimension 1 .*ebb.cross_entropy"):
            F.cross_entropy(ebb.ones(2, 4, 5), ebb.zeros(2, 4, dtype="i64"))

    def test_harmless_arguments_are_taken(self):
        layer = nn.Linear(2, 3, device="sim", dtype=ebb.bfloat16)
        self.assertEqual((layer.weight.device, layer.weight.dtype), ("sim", ebb.bfloat16))
        self.assertEqual(nn.LayerNorm((4,), elementwise_affine=False).parameters(), [])
        self.assertEqual(len(nn.LayerNorm(4, bias=False).parameters()), 1)
        self.assertEqual(nn.LayerNorm([4]).normalized_shape, (4,))
        optim.AdamW(nn.Linear(2, 2).parameters(), fused=True, foreach=None, capturable=False, amsgrad=False)
        for given in ({"amsgrad": True}, {"dtype": "bf16"}, {"inplace": True}):
            with self.assertRaisesRegex(TypeError, next(iter(given))):
                optim.AdamW(nn.Linear(2, 2).parameters(), **given)
        with self.assertRaisesRegex(TypeError, "fused"):
            nn.Linear(2, 2, fused=True)
        ebb.ones(2).to("cpu", non_blocking=True)
        nn.Linear(2, 2).to("cpu", non_blocking=True)

    def test_an_optimizers_state_has_pytorchs_form_and_loads(self):
        def make():
            ebb.manual_seed(3)
            net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
            decayed, others = [net[0].weight, net[1].weight], [net[0].bias, net[1].bias]
            return net, optim.Adam([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.01)

        def step(net, optimizer):
            optimizer.zero_grad()
            net(ebb.ones(2, 3)).square().sum().backward()
            optimizer.step()

        (net, optimizer), (other, again) = make(), make()
        step(net, optimizer)
        step(other, again)
        state = optimizer.state_dict()
        self.assertEqual([group["params"] for group in state["param_groups"]], [[0, 1], [2, 3]])
        self.assertEqual(state["state"][3]["step"].item(), 1)
        self.assert_same(state["state"][0]["exp_avg"], optimizer.state[net[0].weight]["exp_avg"])
        fresh = optim.Adam([{"params": [other[0].weight, other[1].weight], "weight_decay": 0.1},
                            {"params": [other[0].bias, other[1].bias]}], lr=0.01)
        fresh.load_state_dict(state)
        step(net, optimizer)
        step(other, fresh)
        for a, b in zip(net.parameters(), other.parameters()):
            self.assert_same(a, b)
        fresh.load_state_dict(again.get_state())  # the form of 1.0
        with self.assertRaisesRegex(ValueError, "not one of ebb's"):
            fresh.load_state_dict({"state": {}, "param_groups": [{"lr": 1, "params": []}]})

    def test_samplers_of_ranks_share_the_items_out(self):
        for shuffle in (False, True):
            samplers = [data.DistributedSampler(range(10), 3, rank, shuffle=shuffle) for rank in range(3)]
            for sampler in samplers:
                sampler.set_epoch(4)
            drawn = [list(sampler) for sampler in samplers]
            self.assertEqual({len(part) for part in drawn}, {4})
            self.assertEqual({item for part in drawn for item in part}, set(range(10)))
        self.assertNotEqual(list(samplers[0]), (samplers[0].set_epoch(5), list(samplers[0]))[1])

    def test_a_mixin_of_python_has_attributes_of_its_own(self):
        class Named:
            label = "none"

        class Layer(Named, nn.Linear):
            pass

        layer = Layer(2, 2)
        layer.label = "first"
        self.assertEqual((layer.label, Layer.label), ("first", "none"))

    def test_a_switch_of_gradients_is_undone(self):
        with ebb.set_grad_enabled(False):
            self.assertFalse(ebb.is_grad_enabled())
        self.assertTrue(ebb.is_grad_enabled())

        @ebb.set_grad_enabled(False)
        def compute(x):
            return x * 2

        self.assertTrue(ebb.is_grad_enabled())
        self.assertFalse(compute(ebb.ones(1, requires_grad=True)).requires_grad)

    def test_files_and_devices_that_are_not_there_name_no_places_of_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pt")
            for begin in (b"PK\3\4\24\0\0\0\10\10", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 "):
                with open(path, "wb") as file:
                    file.write(begin * 20)
                with self.assertRaisesRegex(ebb.Error, r"model.pt: a file of torch.save \(\).*save_file"):
                    ebb.load_safetensors(path)
            with self.assertRaises(FileNotFoundError):
                ebb.load_safetensors(path + "x")
        for name in ("mps", "abacus"):
            with self.assertRaises(ebb.Error) as caught:
                ebb.ones(1).to(name)
            self.assertRegex(str(caught.exception), f'^no device "{name}" here; there is cpu.* to use instead$')
            self.assertNotRegex(str(caught.exception), "/|sim|cudaemu")


class OtherNames(TestCase):
    def test_deepspeed(self):
        import ebb.checkpointing as checkpointing
        self.assertIs(checkpointing.get_cuda_rng_tracker(), ebb.GeneratorTracker.get_default())
        self.assertIs(checkpointing.CudaRNGStatesTracker, ebb.GeneratorTracker)
        checkpointing.configure(None)
        outputs, w = [], ebb.ones(2, requires_grad=True)
        result = checkpointing.CheckpointFunction.apply(lambda x: (x * w, x + w), outputs, ebb.ones(2))
        self.assertIs(outputs[1], result[1])
        (outputs[0] + outputs[1]).sum().backward()
        self.assertEqual(w.grad.tolist(), [2, 2])
        checkpointing.reset()

    def test_fairscale_wraps_inside_of_its_context(self):
        def is_linear(module, recurse, unwrapped_params):
            return recurse or isinstance(module, ebb.Linear)

        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
        self.assertIs(ebb.compat.auto_wrap(net, is_linear), net)
        self.assertFalse(ebb.checkpoint_is_wrapped(net[0]))
        with ebb.compat.enable_wrap(is_linear, wrapper_cls=ebb.checkpoint_wrapper, offload_to_cpu=True):
            ebb.compat.auto_wrap(net)
            self.assertTrue(ebb.checkpoint_is_wrapped(ebb.compat.wrap(nn.Tanh())))
        self.assertEqual([ebb.checkpoint_is_wrapped(module) for module in net.modules()],
                         [False, True, False, True, False])

    def test_a_recompute_leaves_running_statistics_as_they_are(self):
        norms = [nn.BatchNorm1d(2) for _ in range(2)]
        self.assertEqual(ebb.compat.patch_batchnorm(norms[0]), [])
        ebb.checkpoint_wrapper(norms[0])
        x = ebb.randn(4, 2, requires_grad=True)
        for norm in norms:
            norm(x).square().sum().backward()
        self.assert_same(norms[0].running_mean, norms[1].running_mean)

    def test_oneflows_graph_steps_by_itself(self):
        layer = nn.Linear(2, 1)
        optimizer = optim.SGD(layer.parameters(), lr=0.5)

        class Train(ebb.compat.Graph):
            def __init__(self):
                super().__init__()
                self.layer = layer
                self.add_optimizer(optimizer, lr_sch=optim.lr_scheduler.StepLR(optimizer, 1))

            def build(self, x):
                loss = self.layer(x).sum()
                loss.backward()
                return loss

        before = layer.bias.item()
        Train()(ebb.ones(1, 2))
        self.assertEqual(layer.bias.item(), before - 0.5)
        self.assertIsNone(layer.bias.grad)
        self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 0.05)
        with self.assertRaisesRegex(NotImplementedError, "write one"):
            ebb.compat.Graph()(1)

    def test_oslos_call_gives_a_loss(self):
        model = ebb.Gpt(ebb.GptConfig("tiny", dropout=0))
        tokens = ebb.randint(0, 256, 2, 16)
        output = model(tokens, labels=tokens, use_cache=False)
        self.assert_same(output.logits, model(tokens))
        self.assertAlmostEqual(output.loss.item(), model.loss(tokens[:, :-1], tokens[:, 1:]).item(), places=4)
        with self.assertRaisesRegex(TypeError, "model.generate"):
            model(tokens, use_cache=True)


if __name__ == "__main__":
    main()
