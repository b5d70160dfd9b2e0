"""Names and habits of PyTorch's users work in Python, or an error says which code to write instead."""
import copy
import operator
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings

import ebb
import numpy as np
from gi.overrides import _ebb_compose, _ebb_construct, _ebb_module
from support import Ebb, Residual, TestCase, main


def arrays(*shapes):
    generator = np.random.default_rng(1)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


class Einsum(TestCase):
    def test_sums_of_products_are_those_of_numpy(self):
        for equation, *shapes in (
                ("ij,jk->ik", (3, 4), (4, 5)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("ij,jk", (3, 4), (4, 5)),
                ("bhtd,bhsd->bhts", (2, 3, 4, 5), (2, 3, 6, 5)), ("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)),
                ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("i,j->ij", (3,), (4,)), ("i,i", (5,), (5,)),
                ("ii->", (4, 4)), ("ii->i", (4, 4)), ("iji->j", (3, 2, 3)), ("iii->i", (3, 3, 3)),
                ("ij->ji", (3, 4)), ("ij->", (3, 4)), ("ij,kl->", (2, 3), (4, 5)),
                ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
                ("...ij,...jk", (2, 2, 3, 4), (4, 5)), ("...,...->...", (2, 3), (3,)),
                ("i...,j...->ij...", (2, 3), (4, 3))):
            values = arrays(*shapes)
            found = Ebb.einsum(equation, *map(Ebb.tensor, values))
            np.testing.assert_allclose(found.numpy(), np.einsum(equation, *values), rtol=2e-5, atol=2e-6,
                                       err_msg=equation)

    def test_a_size_of_one_is_broadcast(self):
        a, b = arrays((1, 3), (4, 3))
        found = Ebb.einsum("ij,ij->ij", Ebb.tensor(a), Ebb.tensor(b))
        np.testing.assert_allclose(found.numpy(), a * b, rtol=1e-6)

    def test_gradients_are_those_of_the_product(self):
        a, b = (Ebb.tensor(value, requires_grad=True) for value in arrays((3, 4), (4, 5)))
        weight = Ebb.tensor(arrays((5, 3))[0])
        (Ebb.einsum("ij,jk->ki", a, b) * weight).sum().backward()
        found = [a.grad.numpy().copy(), b.grad.numpy().copy()]
        a.grad = b.grad = None
        ((a @ b).T * weight).sum().backward()
        for gradient, tensor in zip(found, (a, b)):
            np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-5)

    def test_dtypes_are_those_of_products(self):
        x, n = Ebb.ones(2, 2), Ebb.arange(4).reshape(2, 2)
        self.assertEqual(Ebb.einsum("ij,jk->ik", x.bfloat16(), x).dtype, Ebb.float32)
        self.assertEqual(Ebb.einsum("ij,ij->ij", n, n).tolist(), [[0, 1], [4, 9]])
        for operand in (n, x.half()):
            with self.assertRaisesRegex(TypeError, r"einsum\(\): an operand is (i64|f16): .*write float\(\)"):
                Ebb.einsum("ij,jk->ik", operand, operand)

    def test_labels_that_do_not_fit_are_named(self):
        x = Ebb.ones(2, 3)
        for operands, words in ((("ij,jk->ik", x, x), "'j' is of size 3 and 2"), (("ij->k", x), "'k'"),
                                (("ijk->i", x), "3 dimensions"), (("ij,ij->i", x), "2 operands, and 1"),
                                (("i1->i", x), "letters"),
                                (("ii->i", Ebb.ones(1, 3)), "'i' is of size 1 and 3 in the same operand")):
            with self.assertRaisesRegex(ValueError, words):
                Ebb.einsum(*operands)
        with self.assertRaisesRegex(TypeError, "must be a tensor"):
            Ebb.einsum("i->i", np.ones(2))


class Indexing(TestCase):
    def check(self, key, own=None):
        """Ebb's elements at a key are numpy's, and the gradient says how often each was taken."""
        (a,) = arrays((4, 5, 6))
        counts = np.zeros_like(a)
        np.add.at(counts, key, 1)
        for device in ("cpu", "sim"):
            x = Ebb.tensor(a, requires_grad=True, device=device)
            found = x[key if own is None else own]
            np.testing.assert_array_equal(found.detach().cpu().numpy(), a[key], err_msg=str(key))
            found.sum().backward()
            np.testing.assert_array_equal(x.grad.cpu().numpy(), counts)

    def check_writing(self, key, own=None):
        """The same for the elements that are written, of a tensor where the key is."""
        for device in ("cpu", "sim"):
            (a,) = arrays((4, 5, 6))
            x = Ebb.tensor(a, device=device)
            own_key = key if own is None else own
            x[own_key.to(device) if isinstance(own_key, Ebb.Tensor) else own_key] = 7
            a[key] = 7
            np.testing.assert_array_equal(x.cpu().numpy(), a, err_msg=str(key))

    def test_tensors_of_a_device_are_indices_there(self):
        x = Ebb.tensor([[1., 2., 9.], [4., 5., 6.]], device="sim")
        rows, columns = (Ebb.tensor(places, device="sim") for places in ([0, 1], [2, -1]))
        self.assertEqual(x[x > 5].tolist(), [9, 6])
        self.assertEqual(x[rows].tolist(), x.tolist())
        self.assertEqual(x[rows, columns].tolist(), [9, 6])
        x[x > 5] = 0
        self.assertEqual(x.tolist(), [[1, 2, 0], [4, 5, 0]])
        for tensor in (x, Ebb.ones(1).bfloat16()):
            self.assertFalse(hasattr(tensor, "__array_interface__"))
        for read in (Ebb.Tensor.numpy, np.asarray):
            with self.assertRaisesRegex(TypeError, "no bfloat16"):
                read(Ebb.ones(1).bfloat16())
            with self.assertRaisesRegex(Ebb.Error, "copy the tensor to cpu"):
                read(x)

    def test_indices_count_from_the_end(self):
        for key in ([-1], [0, -4], np.array([-1, 2]), np.array([[-2], [1]]), (slice(None), np.array([-5, 4]))):
            self.check(key)
        self.check(np.array([-1, 3]), Ebb.tensor([-1, 3]))
        self.check(np.array([-1, 3]), Ebb.tensor([-1, 3], dtype="i32"))
        self.check(np.array([3, 0]), Ebb.tensor([3, 0], dtype="u8"))
        self.check((np.int64(1), np.array([1, 2], np.uint8)))
        for place in (-5, 4):
            with self.assertRaisesRegex(Ebb.Error, f"index {place} at position 1 is out of range"):
                Ebb.ones(4)[[0, place]]

    def test_places_are_written(self):
        (a,) = arrays((4, 5, 6))
        self.check_writing(a > 0, Ebb.tensor(a > 0))
        self.check_writing(a[:, 0, 0] > 0)
        self.check_writing(np.array([1, -1]), Ebb.tensor([1, -1]))
        self.check_writing((slice(None), [True, False, True, False, True]))
        self.check_writing((..., a[0, 0] > 0))
        x = Ebb.ones(2, 3)
        for key, error, words in (((slice(None), [True, False]), IndexError, r"shape \[2\] for a dimension of size 3"),
                                  ((slice(None), [[0, 1]]), TypeError, r"\[1, 2\] .* one dimension, .*x\[mask\] = 0")):
            with self.assertRaisesRegex(error, words):
                x[key] = 0

    def test_masks_take_what_is_true(self):
        (a,) = arrays((4, 5, 6))
        for mask in (a > 0, a[:, :, 0] > 0, a[:, 0, 0] > 0, a > 100):
            self.check(mask, Ebb.tensor(mask))
            self.check(mask)
        self.check((slice(None), a[0, :, 0] > 0), (slice(None), Ebb.tensor(a[0, :, 0] > 0)))
        self.check([True, False, True, True])
        self.check((..., a[0, 0] > 0), (..., Ebb.tensor(a[0, 0] > 0)))

    def test_steps_and_arrays_of_indices_are_those_of_numpy(self):
        for key in (slice(None, None, 2), (slice(1, None, 3), slice(None, None, 2)), np.array([2, 0, 2]),
                    np.int64(1), (slice(None), np.array([[0, 4], [1, 1]]))):
            self.check(key)

    def test_several_tensors_of_indices_go_together(self):
        rows, columns = np.array([0, 3, -1]), np.array([1, -2, 4])
        self.check((rows, columns), (Ebb.tensor(rows), Ebb.tensor(columns)))
        self.check((slice(None), rows, columns))
        self.check((rows[:, None], columns[None, :]))
        x = Ebb.ones(4, 5, 6)
        with self.assertRaisesRegex(IndexError, "from 0 to 5 in a dimension of size 5"):
            x[Ebb.arange(2), Ebb.tensor([0, 5])]
        with self.assertRaisesRegex(IndexError, "side by side"):
            x[Ebb.arange(2), :, Ebb.arange(2)]

    def test_what_does_not_fit_is_refused(self):
        x = Ebb.ones(4, 5)
        for key, error, words in ((slice(None, None, -1), ValueError, r"must be 1 or more; flip\(\)"),
                                  (Ebb.ones(5) > 0, IndexError, r"shape \[5\] for dimensions of \[4\]"),
                                  (Ebb.ones(2), TypeError, "integers, and masks bool"), (True, TypeError, "a mask"),
                                  (Ebb.ones(2).bfloat16(), TypeError, "bf16: indices are integers"),
                                  (Ebb.tensor(True), TypeError, "a mask"), (np.array(True), TypeError, "a mask")):
            with self.assertRaisesRegex(error, words):
                x[key]


class Methods(TestCase):
    def test_those_of_pytorch_are_those_of_numpy(self):
        (a,) = arrays((4, 5))
        x = Ebb.tensor(a)
        for found, wanted in (
                (x.std(), a.std(ddof=1)), (x.argmin(), a.argmin()), (x.argmin(1), a.argmin(1)),
                (x.flip(0, 1), a[::-1, ::-1]), (x.repeat(2, 1, 3), np.tile(a, (2, 1, 3))), (x.t(), a.T),
                (x.masked_fill(x > 0, 7), np.where(a > 0, 7, a)), (x.masked_select(x > 0), a[a > 0]),
                ((x > 0).nonzero(), np.argwhere(a > 0)), ((x > 2).any(1), (a > 2).any(1)), ((x > -9).all(), True),
                (x.sort()[0], np.sort(a)), (x.argsort(), np.argsort(a)), (Ebb.eye(3), np.eye(3)),
                (x.add(x, alpha=2), 3 * a), (x.sub(1), a - 1), (x[0].outer(x[1]), np.outer(a[0], a[1])),
                (x[0].dot(x[1]), np.dot(a[0], a[1])), (x.int(), a.astype(np.int32)), (x.bool(), a != 0),
                (x.unbind(1)[2], a[:, 2]), (x.clone().masked_fill_(x > 0, 1), np.where(a > 0, 1, a)),
                (x.where(x > 0, 0.0), np.maximum(a, 0)), (Ebb.full_like(x, 2), np.full_like(a, 2))):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
        self.assertTrue(x.allclose(x + 1e-7) and not x.allclose(x + 1))
        self.assertEqual((x.stride(), x.stride(0), x.nelement(), x.element_size(), x.is_cuda, x.is_floating_point()),
                         ((5, 1), 5, 20, 4, False, True))

    def test_a_dimension_is_sorted(self):
        (a,) = arrays((4, 5))
        x = Ebb.tensor(a)
        for found, wanted in ((x.sort(0)[0], np.sort(a, 0)), (x.sort(-1)[0], np.sort(a)),
                              (x.argsort(0), np.argsort(a, 0)), (Ebb.argsort(x, dim=1), np.argsort(a, 1)),
                              (x.sort(0, True)[0], np.sort(a, 0)[::-1]), (x.sort(descending=True)[1], np.argsort(-a))):
            np.testing.assert_array_equal(found.numpy(), wanted)
        for argument, error, words in ((True, TypeError, "write descending=True"), (2, IndexError, "dim 2 of a")):
            with self.assertRaisesRegex(error, words):
                x.sort(argument)

    def test_integers_are_sorted_as_they_are(self):
        for values, dtype in (([[2**62 + 1, 2**62], [-2**63, 5]], "i64"), ([[3, 3, 1, 2]], "u8"), ([[1], [0]], "i32"),
                              ([True, False, True], "bool"), ([], "i64")):
            x, a = Ebb.tensor(values, dtype=dtype), np.array(values)
            for dim, descending in ((-1, False), (0, False), (-1, True)):
                found = x.sort(dim, descending)
                order = np.argsort(a, dim, kind="stable") if not descending else np.argsort(
                    ~a if a.dtype == bool else -a.astype(object), dim, kind="stable")
                self.assertEqual((found.indices.tolist(), found.values.dtype), (order.tolist(), x.dtype))
                self.assertEqual(found.values.tolist(), np.take_along_axis(a, order, dim).tolist())
        self.assertEqual(Ebb.sort(Ebb.tensor([2, 1], device="sim")).values.device, "sim")

    def test_what_is_found_along_a_dimension_has_values_and_indices(self):
        (a,) = arrays((4, 5, 3))
        x = Ebb.tensor(a)
        for dim in (0, 1, -1):
            for found, values, indices in (
                    (x.max(dim), a.max(dim), a.argmax(dim)), (x.min(dim), a.min(dim), a.argmin(dim)),
                    (x.sort(dim), np.sort(a, dim), np.argsort(a, dim)),
                    (x.topk(2, dim), np.flip(np.sort(a, dim), dim).take((0, 1), dim),
                     np.argsort(-a, dim).take((0, 1), dim))):
                np.testing.assert_array_equal(found.values.numpy(), values)
                np.testing.assert_array_equal(found.indices.numpy(), indices)
        self.assertEqual(Ebb.tensor([[3, 1], [0, 2]], dtype="u8").min(1, True).values.tolist(), [[1], [0]])
        with self.assertRaisesRegex(TypeError, "write largest=False"):
            x.topk(2, False)

    def test_functions_of_pytorch_are_those_of_numpy(self):
        (a,) = arrays((4, 5))
        x, target = Ebb.tensor(a), Ebb.tensor((a > 0).astype(np.float32))
        bce = np.maximum(a, 0) - a * (a > 0) + np.log1p(np.exp(-abs(a)))
        for found, wanted in (
                (x.amax((0, 1)), a.max()), (x.amin(0, True), a.min(0, keepdims=True)), (x.norm(), np.linalg.norm(a)),
                (x.norm(dim=1), np.linalg.norm(a, axis=1)), (x.norm(1, 0, True), abs(a).sum(0, keepdims=True)),
                (Ebb.tensor(a[None, :, None]).squeeze(), a), (x.split([1, 4], 1)[1], a[:, 1:]),
                (x.repeat_interleave(2, -1), np.repeat(a, 2, -1)), (x.new_full((2,), 3), [3, 3]),
                (Ebb.linspace(1, 3, 5), np.linspace(1, 3, 5)), (Ebb.linspace(2, 9, 1), [2]),
                (Ebb.one_hot(Ebb.tensor([[2, 0]]), 3), np.eye(3)[[[2, 0]]]), (Ebb.randperm(9).sort().values, range(9)),
                (Ebb.mse_loss(x, target), ((a - (a > 0)) ** 2).mean()), (Ebb.MSELoss(reduction="sum")(x, x), 0),
                (Ebb.binary_cross_entropy_with_logits(x, target, "none"), bce),
                (Ebb.BCEWithLogitsLoss()(x, target), bce.mean()), (Ebb.flatten(x[None], 1), a.reshape(1, 20)),
                (Ebb.add(x, 1), a + 1), (Ebb.pow(x, 2), a ** 2), (Ebb.mm(x, x.T), a @ a.T),
                (Ebb.tensor([1.0, np.nan, np.inf]).isnan(), [False, True, False]),
                (Ebb.tensor([1.0, np.nan, -np.inf]).isfinite(), [True, False, False]),
                (Ebb.tensor([1.0, np.nan, -np.inf]).isinf(), [False, False, True])):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
        self.assertTrue(Ebb.equal(x, x.clone()))
        logits, y = x[:, :3], Ebb.tensor([0, 2, 1, 1])
        self.assert_same(Ebb.CrossEntropyLoss(label_smoothing=0.1)(logits, y),
                         Ebb.cross_entropy(logits, y, label_smoothing=0.1))
        self.assert_same(Ebb.gelu(x, approximate="tanh"), Ebb.gelu(x, "tanh"))
        q = x.reshape(1, 1, 4, 5)
        attend = Ebb.scaled_dot_product_attention
        self.assertTrue(attend(q, q, q, is_causal=True, scale=None).allclose(
            attend(q, q, q, attn_mask=Ebb.ones(4, 4).tril().bool()), 1e-5))
        self.assertEqual(Ebb.checkpoint(Ebb.Linear(5, 2), x, use_reentrant=False).shape, (4, 2))
        for call, error, words in (
                (lambda: x.split([1, 2], 1), ValueError, r"parts of \[1, 2\] for a dimension of size 5"),
                (lambda: x.norm("nuc"), ValueError, "p is 'nuc': it must be 2 or 1"),
                (lambda: next(Ebb.ReLU().parameters()), StopIteration, r"write list\(model.parameters\(\)\)")):
            with self.assertRaisesRegex(error, words):
                call()

    def test_arguments_have_the_orders_of_pytorch(self):
        for low, high, numbers in ((0, 9, Ebb.randint(9, (99,))), (3, 9, Ebb.randint(low=3, high=9, size=(99,))),
                                   (0, 9, Ebb.randint(high=9, size=(99,))), (3, 9, Ebb.randint(3, 9, 99))):
            self.assertEqual(((99,), low, high - 1), (numbers.shape, numbers.min().item(), numbers.max().item()))
        self.assertEqual(Ebb.zeros(size=(2, 3)).shape, (2, 3))
        weight, indices = Ebb.randn(5, 2), Ebb.tensor([4, 0])
        self.assert_same(Ebb.embedding(indices, weight), Ebb.embedding(weight, indices))
        self.assertEqual(Ebb.one_hot(indices).shape, (2, 5))
        self.assertEqual(Ebb.multinomial(Ebb.ones(3), num_samples=9, replacement=True).shape, (9,))
        for call, error, words in (
                (lambda: Ebb.multinomial(Ebb.ones(3), 4, replacement=False), ValueError, "write replacement=True"),
                (lambda: Ebb.layer_norm(weight, (2,)), TypeError, "leave the shape out"),
                (lambda: Ebb.SGD([weight.requires_grad_()], lr=1).param_groups[0]["nesterof"], KeyError,
                 "a group has params, lr, weight_decay, momentum")):
            with self.assertRaisesRegex(error, words):
                call()

    def test_dtypes_have_the_names_of_pytorch(self):
        for name in ("float", "half", "long", "int", "bool", "float32", "bfloat16", "float16", "int64", "uint8"):
            dtype = getattr(ebb, name)
            self.assertIs(operator.attrgetter(str(dtype).removeprefix("ebb."))(ebb), dtype)
            self.assertEqual(Ebb.zeros(2, dtype=dtype).dtype, dtype)
        self.assertNotIn("float", ebb.__all__)

    def test_devices_and_autocast_are_named_as_in_pytorch(self):
        device = Ebb.device("cuda" if Ebb.cuda.is_available() else "cpu")
        self.assertEqual((device.type, Ebb.device(device)), (device.get_name(), device))
        with self.assertRaisesRegex(TypeError, "device is None"):
            Ebb.device(None)
        Ebb.cuda.reset_peak_memory_stats("sim")
        held = Ebb.ones(1000, device="sim")
        self.assertGreaterEqual(Ebb.cuda.max_memory_allocated("sim"), Ebb.cuda.memory_allocated("sim"))
        self.assertGreaterEqual(Ebb.cuda.memory_allocated("sim"), held.nbytes)
        a = Ebb.ones(2, 2)
        for mode in (Ebb.autocast(), Ebb.autocast("bf16"), Ebb.autocast("cpu"), Ebb.autocast(dtype="bf16"),
                     Ebb.autocast(device_type="cuda", dtype=Ebb.bfloat16)):
            with mode:
                self.assertEqual((a @ a).dtype, Ebb.bfloat16)
        for words, error in ((("fp8",), TypeError), (("cpu", "fp8"), TypeError), (("bf1",), TypeError),
                             (("f32",), ValueError), (("cpu", Ebb.DType.F16), ValueError)):
            with self.subTest(words), self.assertRaisesRegex(error, "bf16"):
                Ebb.autocast(*words)
        with Ebb.autocast(enabled=False):
            self.assertEqual((a @ a).dtype, Ebb.float32)

    def test_the_smallest_is_found_where_negation_wraps(self):
        for values, dtype, wanted in (([3, 0, 2], "u8", 1), ([5, -2**63, 4], "i64", 1), ([2, 1, 1], "i32", 1),
                                      ([True, False], "bool", 1), ([2.0, float("nan"), -1.0], "f32", 1)):
            x = Ebb.tensor(values, dtype=dtype)
            self.assertEqual((x.argmin().item(), x.argmin(0).item(), x.argmin(0, True).tolist()),
                             (wanted, wanted, [wanted]), dtype)
        self.assertEqual(Ebb.tensor([[3, 1], [0, 2]], dtype="u8").argmin(1).tolist(), [1, 0])

    def test_all_are_close(self):
        inf, nan = float("inf"), float("nan")
        for a, b, wanted in (([inf, 1.], [inf, 1.], True), ([inf], [-inf], False), ([1.], [inf], False),
                             ([inf], [1.], False), ([nan], [nan], False), ([1], [1], True), ([1], [2], False)):
            self.assertIs(Ebb.allclose(Ebb.tensor(a), Ebb.tensor(b)), wanted, (a, b))
            self.assertIs(Ebb.tensor(a).allclose(Ebb.tensor(b), equal_nan=True), wanted or a[0] != a[0], (a, b))
        self.assertFalse(Ebb.allclose(Ebb.tensor([0], dtype="u8"), Ebb.tensor([255], dtype="u8")))
        with self.assertRaisesRegex(TypeError, r"allclose\(\): other is 2: it must be a tensor, as ebb.full_like"):
            Ebb.ones(2).allclose(2)

    def test_keywords_are_those_of_pytorch(self):
        (a,) = arrays((3, 4))
        x = Ebb.tensor(a)
        for found, wanted in ((x.std(unbiased=False), a.std()), (Ebb.var(x, 1, unbiased=True), a.var(1, ddof=1)),
                              (x.flip(dims=(0, 1)), a[::-1, ::-1]), (x.flip(dims=0), a[::-1]),
                              (x[(x > 0).nonzero(as_tuple=True)], a[a > 0]), (Ebb.tril(x), np.tril(a)),
                              (Ebb.triu(x, diagonal=1), np.triu(a, 1)), (Ebb.full_like(x, 2, dtype="i64"), 2)):
            np.testing.assert_allclose(found.numpy(), np.broadcast_to(wanted, found.shape), rtol=1e-5)
        for make in (Ebb.zeros_like, Ebb.ones_like, Ebb.empty_like):
            self.assertEqual((make(x, dtype=Ebb.int64).dtype, make(x, device="sim").device, make(x).dtype),
                             (Ebb.int64, "sim", Ebb.float32))
        self.assertEqual((x.new_zeros(2, device="sim").device, x.new_ones((2,), device="sim").device), ("sim", "sim"))
        for call in (x.flip, lambda: Ebb.flip(x)):
            with self.assertRaisesRegex(TypeError, r"the dimensions must be given, as flip\(0\)"):
                call()
        for name in ("sort", "sum", "eq", "add_", "matmul"):
            with self.assertRaisesRegex(TypeError, rf"^Tensor\.{name}\(\) got an unexpected keyword argument 'foo'"):
                getattr(x, name)(foo=1)

    def test_a_number_is_formatted(self):
        self.assertEqual((f"{Ebb.tensor(1.5):.4f}", f"{Ebb.tensor(3):03d}", f"{Ebb.tensor(1.5)}"),
                         ("1.5000", "003", "1.5"))
        with self.assertRaisesRegex(TypeError, r"of shape \(2,\) in the format '.2f'"):
            f"{Ebb.ones(2):.2f}"

    def test_code_in_advice_runs(self):
        """Calls with arguments give a value, and other names are there."""
        n_run = 0
        tables = (_ebb_compose._ADVICE, ebb._ADVICE, _ebb_module._OTHER_NAMES, _ebb_construct._ADVICE)
        for advice in [advice for table in tables for advice in table.values()]:
            for name in re.findall(r"\bebb((?:\.\w+)+)", advice):
                operator.attrgetter(name[1:])(ebb)
            for code in re.findall(r"(?:write|and|or|as) ((?:ebb\.|t\b|\(|a @)[^;`]*)", advice):
                code = re.split(r",? (?:and|for|from|or|to|where|which|whose)\b", code)[0].replace('"cuda"', '"sim"')
                if "()" not in code.replace(".numpy()", "") and "path" not in code and "folder" not in code:
                    x, t = Ebb.ones(3, 3, requires_grad=True), Ebb.ones(3, 3)
                    with self.subTest(code):
                        exec(code, {"ebb": ebb, "numpy": np, "n": 3, **dict.fromkeys("abcptx", t), "tensor": x,
                                    "tensors": [t], "values": [0], "shape": (3, 3), "width": 4, "heads": 2,
                                    "warmup": 1, "total": 9, "slope": 0.1, "weight": 0.5, "other": t, "indices": [0],
                                    "outputs": (x * x).sum(), "inputs": x, "logits": x,
                                    "targets": Ebb.zeros(3, dtype="i64"), "model": Ebb.Linear(2, 2), "modules": [],
                                    "optimizer": Ebb.SGD(Ebb.Linear(2, 2))})
                        n_run += 1
        self.assertGreaterEqual(n_run, 30)

    def test_gradients_flow_through_them(self):
        x = Ebb.tensor(arrays((3, 4))[0], requires_grad=True)
        for result in (x.std(), x.flip(0), x.repeat(2, 2), x.masked_fill(x > 0, 0), x.masked_select(x > 0), x.t(),
                       x.outer(x), x.sort()[0]):
            x.grad = None
            result.sum().backward()
            self.assertIsNotNone(x.grad)

    def test_what_is_not_there_says_what_to_use(self):
        x, module = Ebb.ones(2), Ebb.Linear(2, 2)
        for owner, name, words in ((x, "register_hook", "ebb.grad"),
                                   (x, "grad_fn", "is_leaf"), (module, "double", "no 64-bit"),
                                   (module, "register_full_backward_hook", "ebb.grad")):
            with self.assertRaisesRegex(AttributeError, f"{name}'?: .*{re.escape(words)}"):
                getattr(owner, name)
        self.assertFalse(hasattr(x, "no_such_name"))
        for owner, name, words in ((ebb, "tolist", "write t.tolist"),
                                   (x, "gelu", r"write ebb.gelu\(\)"), (x, "mse_loss", r"write ebb.mse_loss\(\)")):
            with self.assertRaisesRegex(AttributeError, words):
                getattr(owner, name)
        with self.assertRaisesRegex(TypeError, "no 64-bit"):
            x.double()

    def test_modules_have_those_of_pytorch(self):
        module = Ebb.Sequential(Ebb.Linear(2, 3), Ebb.Sequential(Ebb.Linear(3, 2)))
        module(Ebb.ones(1, 2)).sum().backward()
        module.zero_grad(set_to_none=False)
        self.assertEqual(module[0].bias.grad.tolist(), [0, 0, 0])
        module.zero_grad()
        self.assertIsNone(module[0].bias.grad)
        seen = []
        self.assertIs(module.apply(seen.append), module)
        self.assertEqual([type(one).__name__ for one in seen], ["Linear", "Linear", "Sequential", "Sequential"])
        self.assertIs(module.get_submodule("1.0"), module[1][0])
        self.assertIs(module.cpu(), module)
        modules = Ebb.ModuleList([Ebb.Linear(2, 2)])
        modules += [Ebb.Linear(2, 3), Ebb.Linear(3, 4)]
        modules[0], modules[-1] = Ebb.Tanh(), Ebb.ReLU()
        self.assertEqual([type(one).__name__ for one in modules], ["Tanh", "Linear", "ReLU"])
        with self.assertRaisesRegex(IndexError, "module 3 of 3"):
            modules[3] = Ebb.Tanh()
        self.assertIsNone(Ebb.Linear(2, 2, bias=False).bias)
        self.assertTrue(Ebb.MultiHeadAttention(4, 2).bias)
        with self.assertRaisesRegex(AttributeError, "no child '7'"):
            module.get_submodule("1.7")


class Showing(TestCase):
    def test_tensors_look_as_those_of_pytorch(self):
        for tensor, text in (
                (Ebb.ones(2, 2), "tensor([[1., 1.],\n        [1., 1.]])"), (Ebb.tensor([1, -20]), "tensor([  1, -20])"),
                (Ebb.tensor([0.5, -1.25]), "tensor([ 0.5000, -1.2500])"), (Ebb.tensor(2.5), "tensor(2.5000)"),
                (Ebb.tensor([True, False]), "tensor([ True, False])"), (Ebb.zeros(0), "tensor([])"),
                (Ebb.zeros(2, 0), "tensor([], size=(2, 0))"),
                (Ebb.tensor([1e-9, 1.]), "tensor([1.0000e-09, 1.0000e+00])"),
                (Ebb.ones(1).bfloat16(), "tensor([1.], dtype=ebb.bfloat16)"),
                (Ebb.ones(1, device="sim"), "tensor([1.], device='sim')"),
                (Ebb.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
                (Ebb.tensor([float("nan"), float("-inf"), 1.]), "tensor([ nan, -inf,   1.])"),
                (Ebb.arange(2000), "tensor([   0,    1,    2, ..., 1997, 1998, 1999])"),
                (Ebb.ones(2, 1, 1), "tensor([[[1.]],\n\n        [[1.]]])")):
            self.assertEqual(repr(tensor).replace("[],\n        []", "[], []"), text)
        with Ebb.dry_run():
            self.assertEqual(repr(Ebb.ones(2, 3)), "tensor(..., size=(2, 3))")

    def test_modules_look_as_those_of_pytorch(self):
        module = Ebb.Sequential(Ebb.Linear(2, 3, bias=False), Residual(Ebb.Dropout(0.5)), Ebb.Tanh())
        self.assertEqual(repr(module), "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=False)\n"
                         "  (1): Residual(\n    (inner): Dropout(p=0.5)\n  )\n  (2): Tanh()\n)")

        class Scale(Ebb.Module):
            def extra_repr(self):
                return "by=2"

        self.assertEqual(repr(Scale()), "Scale(by=2)")

    def test_a_notebook_shows_the_memory_of_a_module(self):
        module = Ebb.Sequential(Ebb.Linear(256, 256), Ebb.BatchNorm1d(256))
        module(Ebb.ones(2, 256)).sum().backward()
        rows = re.findall(r"<tr><td.*?</tr>", module._repr_html_())
        cells = [[re.sub(r"&nbsp;", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]
        self.assertEqual(cells[0][:5], ["(all)", "Sequential", "66,304", "259.0 KiB", "259.0 KiB"])
        self.assertEqual(cells[1], ["0", "Linear", "65,792", "257.0 KiB", "257.0 KiB", "0 B", "cpu"])
        self.assertEqual(cells[2][:2] + cells[2][5:], ["1", "BatchNorm1d", "2.0 KiB", "cpu"])


class Tied(Ebb.Module):
    def __init__(self):
        super().__init__()
        self.table = {"scale": [3.0]}
        self.inner = Ebb.Linear(4, 4)
        self.again = self.inner
        self.mean = Ebb.Buffer(Ebb.zeros(4), persistent=False)
        self.gain = Ebb.Parameter(Ebb.ones(1), requires_grad=False)
        self.weight = self.inner.weight

    def forward(self, x):
        return self.again(self.inner(x) - self.mean) * self.gain * self.table["scale"][0] + self.weight.sum()


class Copies(TestCase):
    def check(self, module, x):
        module.eval()
        twin = copy.deepcopy(module)
        self.assertIs(type(twin), type(module))
        self.assertEqual([name for name, _ in twin.named_modules()], [name for name, _ in module.named_modules()])
        self.assertEqual(list(twin.state_dict()), list(module.state_dict()))
        self.assertEqual([p.requires_grad for p in twin.parameters()], [p.requires_grad for p in module.parameters()])
        before = module(x)
        self.assert_same(before, twin(x))
        with Ebb.no_grad():
            for parameter in twin.parameters():
                parameter.add_(0.5)
        self.assertFalse(Ebb.Tensor.equal(before, twin(x)))
        self.assert_same(before, module(x))
        return twin

    def test_a_copied_module_computes_the_same_and_shares_nothing(self):
        self.check(Ebb.Gpt(Ebb.GptConfig("tiny", layers=2, width=32)), Ebb.randint(0, 256, 2, 8))
        self.check(Ebb.Bert(Ebb.BertConfig(vocab=50, context=16, width=16, heads=2, layers=2, hidden=32)),
                   Ebb.randint(0, 50, 2, 8))
        self.check(Ebb.Sequential(Tied(), Ebb.Sequential(Ebb.Linear(4, 4)), Ebb.BatchNorm1d(4)), Ebb.randn(3, 4))

    def test_what_is_shared_inside_is_shared_in_the_copy(self):
        module = Tied()
        twin = self.check(module, Ebb.randn(2, 4))
        self.assertIs(twin.inner, twin.again)
        self.assertEqual(len({hash(parameter) for parameter in twin.parameters()}),
                         len({hash(parameter) for parameter in module.parameters()}))
        self.assertEqual(twin.table, module.table)
        self.assertIsNot(twin.table["scale"], module.table["scale"])

    def test_what_can_not_be_copied_is_said(self):
        with self.assertRaisesRegex(RuntimeError, r"made by an op.*detach\(\)"):
            copy.deepcopy(Ebb.ones(2, requires_grad=True) * 2)
        with self.assertRaisesRegex(TypeError, "has an adapter"):
            copy.deepcopy(Ebb.lora(Ebb.Gpt(Ebb.GptConfig("tiny", layers=1)), rank=2))
        with self.assertRaisesRegex(TypeError, r"a Linear can't be pickled: pickle module.state_dict\(\)"):
            pickle.dumps(Ebb.Linear(2, 2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            copy.deepcopy(Ebb.checkpoint_wrapper(Ebb.Linear(2, 2)))
        self.assertIn("the copy computes the same, but it is not wrapped", str(caught[0].message))

    def test_configurations_and_devices_are_copied_with_a_module(self):
        module = Ebb.Sequential(Tied())
        module[0].config, module[0].places = Ebb.GptConfig("tiny"), {"device": Ebb.Device.get("cpu")}
        module[0].options = Ebb.GenerationOptions(temperature=0.5)
        twin = copy.deepcopy(module)[0]
        twin.config.layers, twin.options.temperature = 7, 0.25
        self.assertEqual((module[0].config.layers, module[0].options.temperature), (4, 0.5))
        self.assertEqual((twin.config.width, twin.places["device"]), (128, "cpu"))

    def test_attributes_that_can_not_be_copied_are_named(self):
        module = Ebb.Sequential(Tied())
        for value in (Ebb.HostStore(), [Ebb.CheckpointOptions()], {"lock": threading.Lock()}):
            module[0].kept = value
            with self.assertRaisesRegex(TypeError, r"^deepcopy: 0, a Tied, has .* as 'kept', of which there are no "):
                copy.deepcopy(module)
        module[0].kept = [module[0](Ebb.ones(1, 4))]
        with self.assertRaisesRegex(RuntimeError, "^deepcopy: 0, a Tied, can't be copied with 'kept': .*made by an op"):
            copy.deepcopy(module)
        for call, words in ((lambda: copy.copy(module), r"^copy: a Sequential .* write copy.deepcopy\(module\)"),
                            (lambda: copy.deepcopy(Ebb.AdamW(module, 1e-3)), r"AdamW, .*load_state_dict\(opt")):
            with self.assertRaisesRegex(TypeError, words):
                call()

    def test_tensors_are_copied_with_their_gradients(self):
        x = Ebb.randn(3, requires_grad=True)
        (x * x).sum().backward()
        twin = copy.deepcopy(x)
        self.assert_same(twin.detach(), x.detach())
        self.assert_same(twin.grad, x.grad)
        self.assertTrue(twin.requires_grad)
        with Ebb.no_grad():
            twin.zero_()
        self.assertNotEqual(x.tolist(), twin.tolist())

    def test_a_state_comes_out_of_a_pickle_in_another_process(self):
        model, optimizer = Ebb.Linear(3, 2), None
        model(Ebb.ones(1, 3)).sum().backward()
        optimizer = Ebb.AdamW(model, 1e-3)
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bf16": Ebb.randn(2, 3).bfloat16(),
                 "i64": Ebb.arange(4), "view": Ebb.arange(6).reshape(2, 3).T, "bool": Ebb.tensor([True, False]),
                 "none": Ebb.zeros(2, 0), "sim": Ebb.ones(2, device="sim", requires_grad=True)}
        program = ("import pickle, sys; state = pickle.load(sys.stdin.buffer); sys.stdout.buffer.write("
                   "pickle.dumps([state, str(state['sim'].device), state['sim'].requires_grad]))")
        done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(state), capture_output=True,
                              check=False, env={**os.environ, "GI_TYPELIB_PATH": ""})
        self.assertEqual((done.returncode, done.stderr.decode()), (0, ""))
        back, device, requires_grad = pickle.loads(done.stdout)
        self.assertEqual((device, requires_grad), ("sim", True))
        self.assert_equal_states(back, state)

    def assert_equal_states(self, found, wanted):
        self.assertEqual(list(found), list(wanted))
        for name, value in wanted.items():
            if isinstance(value, dict):
                self.assert_equal_states(found[name], value)
            elif isinstance(value, Ebb.Tensor):
                self.assertEqual((found[name].dtype, found[name].shape), (value.dtype, value.shape))
                self.assert_same(found[name].cpu(), value.cpu())
            else:
                self.assertEqual(found[name], value)


class Foreign:
    """What shares its memory by DLPack alone, as PyTorch's tensors do."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Batches(TestCase):
    def test_loaders_of_arrays_give_tensors(self):
        values = np.arange(6, dtype=np.float32)
        loader = [(values, np.array([1, 2])), {"x": Foreign(values), "name": "a"}, [Ebb.ones(2), 3]]
        (x, y), named, mixed = Ebb.batches(loader)
        values[0] = 9
        self.assertEqual((x[0].item(), named["x"][0].item()), (9, 9))     # the same memory
        self.assertEqual((y.dtype, y.tolist(), named["name"], mixed[1]), (Ebb.int64, [1, 2], "a", 3))

    def test_they_go_to_a_device(self):
        ((x,),) = Ebb.batches([(np.ones(2, np.float32),)], device="sim")
        self.assertEqual(x.device, "sim")
        with Ebb.default_device("sim"):
            (x,) = Ebb.batches([np.ones(2, np.float32)])
        self.assertEqual(x.device, "sim")

    def test_what_can_not_be_shared_is_copied(self):
        frozen = np.ones(2, np.float32)
        frozen.setflags(write=False)
        for value, dtype in ((frozen, Ebb.float32), (np.ones(2), Ebb.float32), (np.ones(2, np.int16), Ebb.int64),
                             ([1, 2], Ebb.int64), (np.ones(4, np.float32)[::-1], Ebb.float32)):
            self.assertEqual(Ebb.as_tensor(value).dtype, dtype)
        self.assertEqual(Ebb.as_tensor(np.ones(2), dtype="bf16").dtype, Ebb.bfloat16)
        x = Ebb.ones(2)
        self.assertIs(Ebb.as_tensor(x), x)

    def test_a_model_trains_on_them(self):
        model = Ebb.Linear(4, 2)
        optimizer = Ebb.SGD(model.parameters(), lr=0.1)
        generator = np.random.default_rng(1)
        losses = []
        loader = [(generator.standard_normal((8, 4)).astype(np.float32), np.arange(8) % 2)] * 20
        for x, targets in Ebb.batches(loader):
            loss = Ebb.cross_entropy(model(x), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    main()
