"""Tensors in Python: operators and indexing against numpy, data shared with numpy and DLPack."""
import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
from support import Ebb, TestCase, main, tensor_bytes
from gi.repository import GLib


def arrays(*shapes):
    generator = np.random.default_rng(1)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


class Operators(TestCase):
    def check(self, function, *shapes):
        values = arrays(*shapes)
        found = function(*(Ebb.from_numpy(value.copy()) for value in values))
        np.testing.assert_allclose(found.numpy(), function(*values), rtol=2e-5, atol=1e-6)

    def test_arithmetic_between_tensors_is_that_of_numpy(self):
        for function in (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b,
                         lambda a, b: abs(a) ** b, lambda a, b: -a + b):
            self.check(function, (3, 4), (3, 4))
            self.check(function, (3, 1, 4), (5, 1))

    def test_arithmetic_with_numbers_is_that_of_numpy(self):
        for function in (lambda a: a + 2, lambda a: 2 + a, lambda a: a - 2.5, lambda a: 2.5 - a, lambda a: a * 3,
                         lambda a: 3 * a, lambda a: a / 4, lambda a: 4 / a, lambda a: a ** 2,
                         lambda a: 2.0 ** a, lambda a: a * np.float32(3), lambda a: np.float32(3) * a):
            self.check(function, (3, 4))

    def test_comparison_gives_booleans(self):
        for function in (lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a >= b):
            self.check(function, (3, 4), (3, 4))
        found = Ebb.tensor([1.0, 2.0]) > 1
        self.assertEqual(found.dtype, Ebb.DType.BOOL)
        self.assertEqual(found.tolist(), [False, True])

    def test_matrix_product_is_that_of_numpy(self):
        self.check(lambda a, b: a @ b, (3, 4), (4, 5))
        self.check(lambda a, b: a @ b, (2, 3, 4), (2, 4, 5))
        self.check(lambda a, b: a @ b.T, (3, 4), (5, 4))

    def test_parts_of_decoders_are_those_of_numpy(self):
        gate, up = arrays((3, 4), (3, 4))
        weight = np.linspace(-1, 1, 4, dtype=np.float32)
        root = gate / np.sqrt((gate ** 2).mean(-1, keepdims=True) + 1e-6)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
        g, u, w = map(Ebb.from_numpy, (gate, up, weight))
        close(Ebb.gated_activation(g, u).numpy(), gate / (1 + np.exp(-gate)) * up)
        close(Ebb.gated_activation(g, u, "gelu-tanh").numpy(), Ebb.gelu(g, "tanh").numpy() * up)
        close(g.soft_cap(2).numpy(), 2 * np.tanh(gate / 2))
        small = Ebb.full((1, 4), 1e-4)  # beside which eps counts
        for norm in Ebb.RMSNorm(4), Ebb.rms_norm:
            self.assertAlmostEqual(norm(small)[0, 0].item(), 1e-4 / (1e-8 + 2.0 ** -23) ** 0.5, 6)
        close(Ebb.rms_norm(g, w).numpy(), root * weight)
        close(Ebb.rms_norm(g, w, unit_offset=True).numpy(), root * (1 + weight))
        (x,) = arrays((1, 5, 2, 6))
        turned = Ebb.rotary(Ebb.from_numpy(x), Ebb.tensor([1.0, 0.5]), Ebb.tensor([[0, 0, 0, 3, 3]]), first=2).numpy()
        angle = np.array([2, 3, 4, 2, 3])[:, None] * np.array([1.0, 0.5])
        c, s = (f(angle)[None, :, None, :] for f in (np.cos, np.sin))
        a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
        close(turned, np.concatenate([a * c - b * s, b * c + a * s, rest], -1))
        table, targets = Ebb.from_numpy(arrays((7, 4))[0]), Ebb.tensor([1, 2, 6])
        loss = Ebb.fused_linear_cross_entropy(g, table, targets, softcap=1.5)
        close(loss.item(), Ebb.cross_entropy(Ebb.linear(g, table).soft_cap(1.5), targets).item())

    def test_classes_may_be_in_any_dimension(self):
        (scores,) = arrays((2, 3, 3))
        x, y = Ebb.from_numpy(scores), Ebb.tensor([[0, 1, 2], [2, 2, 0]])
        expected = [-(scores - np.log(np.exp(scores).sum(dim, keepdims=True))) for dim in (1, 2)]
        n, d = np.indices((2, 3))
        for dim, found in (1, expected[0][n, y.numpy(), d]), (-1, expected[1][n, d, y.numpy()]):
            for loss in Ebb.cross_entropy(x, y, dim=dim), Ebb.CrossEntropyLoss(dim=dim)(x, y):
                self.assertAlmostEqual(loss.item(), found.mean(), 5)
        with self.assertRaisesRegex(ValueError, "classes in dimension 1, as in PyTorch, or in the last one: write"):
            Ebb.cross_entropy(x, y)
        with self.assertRaisesRegex(ValueError, r"logits of shape \(2, 3, 4\) .* in dimension 1: write dim=1"):
            Ebb.cross_entropy(Ebb.randn(2, 3, 4), Ebb.zeros(2, 4, dtype="i64"))

    def test_attention_is_that_of_numpy(self):
        q, k = arrays((1, 2, 5, 4), (1, 1, 7, 4))
        starts = np.array([0, 0, 4, 4, 4])
        y = Ebb.attention(Ebb.from_numpy(q), Ebb.from_numpy(k), Ebb.from_numpy(k), starts=Ebb.tensor(starts[None]),
                          causal=True, first_query=2, window=3, softcap=2)
        position, key = np.arange(5)[:, None] + 2, np.arange(7)[None]
        seen = (key <= position) & (key > position - 3) & (key >= starts[:, None])
        scores = np.where(seen, np.exp(2 * np.tanh(np.einsum("bhtd,bgsd->bhts", q, k) / 4)), 0)
        expected = np.einsum("bhts,bgsd->bhtd", scores / scores.sum(-1, keepdims=True), k)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)
        x = Ebb.randn([1, 4, 24])
        np.testing.assert_array_equal(Ebb.self_attention(x, 2, None, True).numpy(),
                                      Ebb.self_attention(x, 2, causal=True, window=9).numpy())
        with self.assertRaisesRegex(Ebb.Error, "window is -1; must be positive, or 0 for no window"):
            Ebb.self_attention(x, 2, window=-1)

    def test_reductions_are_those_of_numpy(self):
        (a,) = arrays((3, 4, 5))
        x = Ebb.from_numpy(a)
        for dim, keep in ((None, False), (1, False), ((0, 2), True), (-1, True)):
            np.testing.assert_allclose(x.sum(dim, keep).numpy(), a.sum(dim, keepdims=keep), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(x.mean(dim, keep).numpy(), a.mean(dim, keepdims=keep), rtol=1e-5, atol=1e-6)
        values, indices = x.max(1)
        np.testing.assert_array_equal(values.numpy(), a.max(1))
        np.testing.assert_array_equal(indices.numpy(), a.argmax(1))
        self.assertEqual(x.max().item(), a.max())
        self.assertEqual(x.argmax().item(), a.argmax())

    def test_indexing_is_that_of_numpy(self):
        (a,) = arrays((4, 5, 6))
        x = Ebb.from_numpy(a)
        for key in (0, -1, slice(1, 3), slice(None, None, 2), (1, 2), (slice(None), 3), (..., 2), (None, 1, ..., None),
                    (1, slice(4, 1), 2), (slice(-2, None), ..., slice(1, -1)), [0, 2], (slice(None), [3, 0])):
            np.testing.assert_array_equal(x[key].numpy(), a[key], err_msg=str(key))
        rows = np.array([[0, 3], [1, 1]])
        np.testing.assert_array_equal(x[Ebb.from_numpy(rows)].numpy(), a[rows])
        self.assertEqual([row.shape for row in x], [(5, 6)] * 4)

    def test_bad_indices_are_refused(self):
        x = Ebb.ones(2, 3)
        for key, error in ((2, IndexError), (-3, IndexError), ((0, 0, 0), IndexError), (True, TypeError),
                           ("a", TypeError), (slice(None, None, -1), ValueError), (x[0] > 0, IndexError),
                           (x, TypeError)):
            with self.assertRaises(error, msg=str(key)):
                x[key]

    def test_assignment_to_parts_writes_in_place(self):
        (a,) = arrays((4, 5))
        x = Ebb.tensor(a)
        x[1, 2:4] = 7
        x[:, 0] = Ebb.arange(4).float()
        a[1, 2:4] = 7
        a[:, 0] = np.arange(4)
        np.testing.assert_array_equal(x.numpy(), a)

    def test_a_list_behind_an_ellipsis_and_a_new_dimension_says_where_to_write(self):
        for key in ((..., None, [0, 2]), (None, ..., [3, 1]), (..., [1, 0], slice(None)), (0, ..., None, [2, 3])):
            (a,) = arrays((4, 5, 6))
            x = Ebb.tensor(a)
            x[key] = 7
            a[key] = 7
            np.testing.assert_array_equal(x.numpy(), a, err_msg=str(key))

    def test_bounds_that_no_double_holds_are_exact(self):
        far = 2**53 + 1
        x = Ebb.tensor([-2**60, -1, 2**60])
        for bounds in ((-far, far), (-far, None), (None, far), (-far, 0)):
            wanted = [min(max(value, bounds[0] or -2**62), 2**62 if bounds[1] is None else bounds[1])
                      for value in x.tolist()]
            self.assertEqual(x.clamp(*bounds).tolist(), wanted)

    def test_in_place_on_a_tensor_that_requires_a_gradient_is_refused(self):
        x = Ebb.ones(2, requires_grad=True)
        with self.assertRaises(GLib.Error):
            x[0] = 1

    def test_c_errors_name_both_shapes(self):
        with self.assertRaises(GLib.Error) as caught:
            Ebb.ones(2, 3) @ Ebb.ones(2, 3)
        self.assertIn("[2, 3]", caught.exception.message)
        self.assertTrue(caught.exception.matches(Ebb.error_quark(), Ebb.Error.SHAPE))

    def test_an_operator_names_the_list_or_the_array_it_was_given(self):
        x, array = Ebb.ones(2), np.ones(2)
        for function in (lambda other: x + other, lambda other: other + x, lambda other: x * other,
                         lambda other: other * x, lambda other: other - x, lambda other: x > other):
            for other in (array, [1, 2], (1, 2)):
                with self.assertRaisesRegex(TypeError, r"1.* is no tensor and no number: write ebb.tensor\(\) of it"):
                    function(other)
        for function in (lambda: x == array, lambda: array != x):  # else one bool for all elements
            with self.assertRaisesRegex(TypeError, "write ebb.tensor"):
                function()
        self.assertIs(x == [1, 1], False)
        with self.assertRaisesRegex(TypeError, "write ebb.tensor"):
            x += array
        with self.assertRaisesRegex(TypeError, r"from_numpy\(\): \[1, 2\] is no numpy array"):
            Ebb.from_numpy([1, 2])

    def test_gradients_flow_through_operators(self):
        x = Ebb.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = (x * x / 2 + 3 * x - 1)[1:].sum()
        y.backward(retain_graph=True)
        self.assertEqual(x.grad.tolist(), [0.0, 5.0, 6.0])
        x.grad = None
        y.backward(inputs=[x])
        self.assertEqual(x.grad.tolist(), [0.0, 5.0, 6.0])
        (found,) = Ebb.grad((x * x).sum(), x)
        self.assertEqual(found.tolist(), [2.0, 4.0, 6.0])

    def test_a_tensor_of_numbers_has_floats(self):
        for data in ([1, 2], (1, 2), Ebb.tensor([1, 2]), np.array([1, 2])):
            made = Ebb.Tensor(data)
            self.assertEqual((made.dtype, made.tolist()), (Ebb.float32, [1, 2]))
        self.assertEqual(Ebb.Tensor([[1], [2]]).shape, (2, 1))
        for sizes in ((2,), (2, 3)):
            with self.assertRaisesRegex(TypeError, r"Tensor\(\): 2.* may be a shape or numbers: say ebb.empty\(\)"):
                Ebb.Tensor(*sizes)
        with self.assertRaisesRegex(TypeError, "'x' is no number"):
            Ebb.Tensor("x")

    def test_values_come_out_as_python_has_them(self):
        self.assertEqual(Ebb.tensor([[1, 2], [3, 4]]).tolist(), [[1, 2], [3, 4]])
        self.assertEqual(Ebb.tensor([True, False]).tolist(), [True, False])
        self.assertEqual(Ebb.tensor([0.5]).bfloat16().tolist(), [0.5])
        self.assertEqual(Ebb.tensor([[0.5], [2]]).half().T.tolist(), [[0.5, 2.0]])
        self.assertEqual(Ebb.tensor(3).item(), 3)
        self.assertIs(type(Ebb.tensor(2 ** 62 + 1).item()), int)
        self.assertEqual(Ebb.tensor(2 ** 62 + 1).item(), 2 ** 62 + 1)
        self.assertEqual(Ebb.zeros(0, 3).tolist(), [])
        with self.assertRaises(ValueError):
            Ebb.tensor([[1], [2, 3]])


def product_in_child(values, expected):
    signal.alarm(60)  # the end of one that hangs
    x = Ebb.from_numpy(values)
    os._exit(0 if np.array_equal((x @ x).numpy(), expected) else 1)


class Children(TestCase):
    def test_a_forked_process_computes_as_its_parent(self):
        values, = arrays((256, 256))
        x = Ebb.from_numpy(values)
        expected = (x @ x).numpy()  # with OpenMP's threads
        processes = [multiprocessing.get_context("fork").Process(target=product_in_child, args=(values, expected))
                     for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            self.assertEqual(process.exitcode, 0)
        np.testing.assert_array_equal((x @ x).numpy(), expected)


class InPlace(TestCase):
    def test_a_step_written_by_hand_trains(self):
        model = Ebb.Linear(4, 1)
        x, y = Ebb.randn(16, 4), Ebb.randn(16, 1)
        losses, weight = [], model.weight
        for _ in range(30):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            losses.append(loss.item())
            with Ebb.no_grad():
                for p in model.parameters():
                    version = p.get_version()
                    p -= 0.1 * p.grad
                    self.assertEqual(p.get_version(), version + 1)
                    p.grad.zero_()
        self.assertLess(losses[-1], 0.7 * losses[0])
        self.assert_same(weight, model.weight)
        before = weight.clone()
        weight.data -= 1
        np.testing.assert_allclose(weight.detach().numpy(), before.detach().numpy() - 1, rtol=1e-6)

    def test_operators_write_where_the_tensor_is(self):
        for function in (lambda a, b: a.__iadd__(b), lambda a, b: a.__isub__(b), lambda a, b: a.__imul__(b),
                         lambda a, b: a.__itruediv__(b)):
            for shape in ((3, 4), (4,), (1, 4), None):
                a, b = arrays((3, 4), shape or (1,))
                b = 2.5 if shape is None else b
                x = Ebb.tensor(a)
                alias, version = x[0:3], x.get_version()
                self.assertIs(function(x, Ebb.tensor(b) if shape else b), x)
                np.testing.assert_allclose(alias.numpy(), function(a.copy(), b), rtol=1e-6)
                self.assertEqual(alias.get_version(), version + 1)
        x = Ebb.tensor([[1.0, 2.0], [3.0, 4.0]])
        alias = x[:]
        x **= 2
        x @= Ebb.tensor([[0.0, 1.0], [1.0, 0.0]])
        self.assertEqual(alias.tolist(), [[4, 1], [16, 9]])
        mask = alias > 3
        other = mask[:]
        mask &= alias < 10
        mask |= alias == 1
        self.assertEqual(other.tolist(), [[True, True], [False, True]])

    def test_methods_return_the_tensor_that_they_changed(self):
        x = Ebb.ones(2, 3)
        for function, expected in ((lambda: x.add_(1), 2), (lambda: x.sub_(Ebb.ones(3)), 1), (lambda: x.mul_(6), 6),
                                   (lambda: x.div_(Ebb.full(3, 2)), 3), (lambda: x.add_(Ebb.ones(3), alpha=2), 5),
                                   (lambda: x.sub_(2, alpha=2), 1), (lambda: x.fill_(3), 3), (lambda: x.pow_(2), 9),
                                   (lambda: x.clamp_(max=4), 4), (lambda: x.zero_(), 0),
                                   (lambda: x.copy_(Ebb.arange(1)), 0)):
            version = x.get_version()
            self.assertIs(function(), x)
            self.assertEqual(x.tolist(), [[expected] * 3] * 2)
            self.assertEqual(x.get_version(), version + 1)
        x = Ebb.zeros(1000)
        self.assertTrue(0.9 < x.normal_(5, 1).var().item() < 1.1 and 4.8 < x.mean().item() < 5.2)
        self.assertTrue(-2 <= x.uniform_(-2, -1).min().item() and x.max().item() < -1)
        again = Ebb.Generator.new(7)
        self.assert_same(Ebb.zeros(9).normal_(generator=again), Ebb.randn(9, generator=Ebb.Generator.new(7)))

    def test_parts_are_changed_in_place(self):
        (a,) = arrays((5, 6))
        for key in (slice(0, 1), 2, (slice(None), 3), (..., slice(1, 4)), ..., (slice(0, 4, 2), slice(None)), (-1, -1),
                    slice(None)):
            x, b = Ebb.tensor(a), a.copy()
            version = x.get_version()
            x[key] += 5
            self.assertEqual(x.get_version(), version + 1)
            x[key] *= 2
            b[key] = (b[key] + 5) * 2
            np.testing.assert_allclose(x.numpy(), b, rtol=1e-6, err_msg=str(key))

    def test_assignment_is_that_of_numpy(self):
        (a,) = arrays((4, 5))
        rows = np.arange(5, dtype=np.float32)
        for key, value in ((2, rows), (..., 1.5), (slice(1, 3), rows), ((slice(None), -1), 7), ([0, 3], rows),
                           ([0, 3], np.stack([rows, -rows])), ((slice(None), [1, 1, 4]), 2), ((..., [0]), 3),
                           ((slice(None), [1, 2, 4, 0]), -rows[1:]), ((slice(None), [3]), -rows[1:, None]),
                           ((1, [0, 2]), 9), (np.array([3, -4]), 1)):
            x, b = Ebb.tensor(a), a.copy()
            x[Ebb.tensor(key) if isinstance(key, np.ndarray) else key] = value
            b[key] = value
            np.testing.assert_array_equal(x.numpy(), b, err_msg=str(key))
        x = Ebb.tensor(a)
        x[x < 0] = 0
        np.testing.assert_array_equal(x.numpy(), np.maximum(a, 0))
        x[Ebb.tensor([True, False, False, True])] = -1
        self.assertEqual(x[0].tolist() + x[3].tolist(), [-1] * 10)
        x[Ebb.tensor([True, False, False, True])] = np.stack([rows, -rows])
        self.assertEqual(x[0].tolist() + x[3].tolist(), [*rows, *-rows])
        square = Ebb.zeros(2, 2)
        with self.assertRaisesRegex(ValueError, r"values of shape \[2\] for a mask of shape \[2, 2\]"):
            square[Ebb.tensor([[True, False], [True, False]])] = [1, 2]
        self.assertEqual(square.tolist(), [[0, 0], [0, 0]])
        x[0, :2] = [8, 9]
        self.assertEqual(x[0, :3].tolist(), [8, 9, 2])
        row = Ebb.zeros(3)
        row[0], row[1:] = Ebb.tensor([3.0]), Ebb.tensor([[[4.0, 5.0]]])
        self.assertEqual(row.tolist(), [3, 4, 5])
        with self.assertRaisesRegex(Ebb.Error, r"shape \[2\] does not broadcast to \[\]"):
            row[0] = Ebb.tensor([1.0, 2.0])
        integers = Ebb.arange(4)
        integers[[1, 2]] = integers[:2]
        self.assertEqual(integers.tolist(), [0, 0, 1, 3])
        integers[1:3] = Ebb.tensor([7, 8])
        integers += 1
        self.assertEqual(integers.tolist(), [1, 8, 9, 4])

    def test_what_a_graph_records_stays_what_it_is(self):
        x = Ebb.ones(3, requires_grad=True)
        for change in (lambda: x.__iadd__(1), lambda: x.mul_(2), lambda: x.zero_(), lambda: x.__setitem__(0, 1),
                       lambda: x.normal_(), lambda: x.copy_(Ebb.ones(3))):
            with self.assertRaisesRegex(Ebb.Error, "requires a gradient can't be changed in place") as caught:
                change()
            self.assertEqual(caught.exception.code, Ebb.Error.GRAPH)
        with Ebb.no_grad():
            x += 1
        self.assertEqual(x.tolist(), [2, 2, 2])
        y = x * 2
        first = y
        y += x
        y *= 3
        total = Ebb.zeros(1)
        total += y.sum()
        total.backward()
        self.assertEqual(x.grad.tolist(), [9, 9, 9])
        self.assertEqual(first.tolist(), [4, 4, 4])
        with self.assertRaises(Ebb.Error):
            y.add_(1)
        factor = Ebb.ones(3)
        product = (x * factor).sum()
        factor += 1
        with self.assertRaises(Ebb.Error) as caught:
            product.backward()
        self.assertEqual(caught.exception.code, Ebb.Error.VERSION)

    def test_mistakes_are_named(self):
        x, integers = Ebb.ones(2, 3), Ebb.arange(3)
        for function, error, words in (
                (lambda: integers.__iadd__(0.5), TypeError, "tensor of i64 can't hold"),
                (lambda: integers.__imul__(2.0), TypeError, "result is of f32, which a tensor of i64 can't hold"),
                (lambda: integers.__itruediv__(2), TypeError, "result is of f32"),
                (lambda: integers.pow_(-1), ValueError, "-1 is a negative exponent of i64"),
                (lambda: x.__iadd__(Ebb.ones(4, 2, 3)), Ebb.Error, r"\[4, 2, 3\] does not broadcast to \[2, 3\]"),
                (lambda: x.__imatmul__(Ebb.ones(3, 2)), ValueError, r"shape \[2, 2\], and the tensor of \[2, 3\]"),
                (lambda: x.add_("a"), TypeError, r"add_\(\): other is 'a': it must be a tensor or a number"),
                (lambda: x.copy_(None), TypeError, r"copy_\(\): source is None: it must be a tensor"),
                (lambda: x.__setitem__(0, "a"), TypeError, "'a' can't be written to a tensor"),
                (lambda: x.__setitem__(5, 1), IndexError, "index 5 in a dimension of size 2"),
                (lambda: x.__setitem__([0, 5], 1), IndexError, "index 5 in a dimension of size 2"),
                (lambda: x.__setitem__([0, 1], Ebb.ones(3, 3)), ValueError, "3 values for 2 indices"),
                (lambda: x.__setitem__(integers > 0, 1), IndexError, r"a mask of shape \[3\]")):
            with self.assertRaisesRegex(error, words):
                function()
        with self.assertRaises(TypeError):
            x += "a"
        self.assertEqual(x.tolist(), [[1] * 3] * 2)
        self.assertEqual(integers.tolist(), [0, 1, 2])


class Sharing(TestCase):
    def test_numpy_sees_the_tensors_memory(self):
        x = Ebb.zeros(2, 3)
        a = x.numpy()
        a[1, 2] = 5
        x[0, 0] = 4
        self.assertEqual(x.tolist(), [[4, 0, 0], [0, 0, 5]])
        self.assertEqual(a[0, 0], 4)
        self.assertEqual(x.T.numpy().strides, (4, 12))

    def test_an_array_keeps_the_memory_of_its_tensor(self):
        before = tensor_bytes()
        a = Ebb.full([1000], 3.0).numpy()
        gc.collect()
        filler = [Ebb.zeros(1000) for _ in range(8)]
        self.assertTrue((a == 3).all())
        del a, filler
        self.assertEqual(tensor_bytes(), before)

    def test_a_tensor_keeps_the_memory_of_its_array(self):
        class Array(np.ndarray):
            pass

        a = np.full((10,), 3.0, np.float32).view(Array)
        gone = weakref.ref(a)
        x = Ebb.from_numpy(a)
        a[0] = 1
        self.assertEqual(x[0].item(), 1)
        del a
        gc.collect()
        y = x * 1
        self.assertIsNotNone(gone())
        self.assertEqual(x.tolist()[:2], [1, 3])
        del x, y
        gc.collect()
        self.assertIsNone(gone())

    def test_views_of_arrays_are_shared(self):
        a = np.arange(12, dtype=np.int64).reshape(3, 4)
        x = Ebb.from_numpy(a[:, 1:3].T)
        self.assertEqual(x.tolist(), a[:, 1:3].T.tolist())
        for dtype in (np.float16, np.int32, np.uint8, np.bool_):
            b = np.ones((2, 3), dtype)
            self.assertEqual(Ebb.from_numpy(b).tolist(), b.tolist())
            self.assertEqual(Ebb.from_numpy(b).numpy().dtype, b.dtype)

    def test_arrays_that_cannot_be_shared_are_refused(self):
        read_only = np.ones(3, np.float32)
        read_only.flags.writeable = False
        for array, error in ((np.ones(3), TypeError), (np.ones(3, ">f4"), TypeError), (read_only, ValueError),
                             (np.ones(3, np.float32)[::-1], ValueError)):
            with self.assertRaises(error):
                Ebb.from_numpy(array)
        with self.assertRaises(TypeError):
            Ebb.ones(3).bfloat16().numpy()

    def test_dlpack_to_numpy_shares_memory(self):
        before = tensor_bytes()
        x = Ebb.zeros(2, 3)
        a = np.from_dlpack(x)
        x[1, 1] = 6
        self.assertEqual(a[1, 1], 6)
        del x
        self.assertEqual(a[1, 1], 6)
        del a
        self.assertEqual(tensor_bytes(), before)

    def test_dlpack_from_numpy_shares_memory(self):
        a = np.zeros((2, 3), np.float32)
        x = Ebb.from_dlpack(a)
        a[1, 2] = 8
        self.assertEqual(x[1, 2].item(), 8)
        del a
        gc.collect()
        self.assertEqual(x[1, 2].item(), 8)
        self.assertEqual(Ebb.from_dlpack(Ebb.ones(2).bfloat16()).dtype, Ebb.DType.BF16)

    def test_a_capsule_that_nobody_takes_lets_go(self):
        before = tensor_bytes()
        capsule = Ebb.ones(1000).__dlpack__()
        self.assertGreater(tensor_bytes(), before)
        del capsule
        self.assertEqual(tensor_bytes(), before)

    def test_a_consumer_that_refuses_a_capsule_raises_its_own_error_and_lets_go(self):
        def take(tensor):
            _capsule = tensor.__dlpack__()  # dies while the error is on its way
            raise ValueError("refused")

        before = tensor_bytes()
        for _ in range(3):
            with self.assertRaisesRegex((RuntimeError, BufferError), "dtype"):  # numpy has no bf16
                np.from_dlpack(Ebb.ones(1000).bfloat16())
            with self.assertRaisesRegex(ValueError, "^refused$"):
                take(Ebb.ones(1000))
            self.assertEqual(tensor_bytes(), before)

    def test_a_capsule_is_used_once_and_kept_when_refused(self):
        capsule = Ebb.ones(3).__dlpack__()
        Ebb.from_dlpack(capsule)
        with self.assertRaises(TypeError):
            Ebb.from_dlpack(capsule)
        wrong = np.ones(3)
        with self.assertRaises(GLib.Error):
            Ebb.from_dlpack(wrong)
        self.assertEqual(wrong.sum(), 3)

    def test_the_interpreter_ends_well_with_shared_memory_around(self):
        program = ("import gi; gi.require_version('Ebb', '1.0')\n"
                   "from gi.repository import Ebb\nimport numpy, builtins\n"
                   "builtins.kept = [Ebb.ones(3).__dlpack__(), Ebb.from_numpy(numpy.ones(3, 'f4')),"
                   " Ebb.ones(3).numpy(), Ebb.from_dlpack(numpy.ones(3, 'f4'))]\n")
        self.assertEqual(subprocess.run([sys.executable, "-c", program], check=False).returncode, 0)


if __name__ == "__main__":
    main()
