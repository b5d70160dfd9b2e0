"""Devices in Python: names for them, the default one, values that come from them."""
import inspect
import unittest

from support import Ebb, TestCase, main


class DefaultDevice(TestCase):
    def setUp(self):
        self.addCleanup(Ebb.set_default_device, None)

    def test_tensors_and_layers_are_made_there(self):
        self.assertEqual(Ebb.get_default_device(), "cpu")
        Ebb.set_default_device("sim")
        made = [Ebb.zeros(2, 3), Ebb.randn(4), Ebb.empty(2), Ebb.full(2, 1.5), Ebb.arange(3), Ebb.tensor([1, 2]),
                Ebb.tensor(2.5), Ebb.randint(0, 5, 3)]
        self.assertEqual({str(x.device) for x in made}, {"sim"})
        self.assertEqual(Ebb.zeros(2, device="cpu").device, "cpu")
        self.assertEqual({str(p.device) for _, p in Ebb.Linear(4, 3).named_parameters()}, {"sim"})
        Ebb.set_default_device(Ebb.Device.get("cpu"))
        self.assertEqual(Ebb.zeros(2).device, "cpu")

    def test_the_context_manager_puts_back_what_was(self):
        with self.assertRaises(ZeroDivisionError), Ebb.default_device("sim"):
            self.assertEqual(Ebb.get_default_device(), "sim")
            with Ebb.default_device("cpu"):
                self.assertEqual(Ebb.zeros(1).device, "cpu")
            self.assertEqual(Ebb.zeros(1).device, "sim")
            1 / 0
        self.assertEqual(Ebb.get_default_device(), "cpu")

    def test_layers_begin_with_the_same_values(self):
        Ebb.manual_seed(1)
        here = Ebb.Linear(4, 3)
        Ebb.manual_seed(1)
        with Ebb.default_device("sim"):
            there = Ebb.Linear(4, 3)
        self.assert_same(here.weight, there.weight)

    def test_names_that_mean_no_device_are_refused(self):
        with self.assertRaises(Exception) as context:
            Ebb.set_default_device("abacus")
        self.assertIn("abacus", str(context.exception))
        with self.assertRaises(TypeError):
            Ebb.set_default_device(3)
        self.assertEqual(Ebb.get_default_device(), "cpu")


class Names(TestCase):
    def test_functions_take_the_names_of_devices_and_dtypes(self):
        for device in ("cpu", Ebb.Device.get("cpu")):
            self.assertIsNone(Ebb.memory_reset_peaks(device))
            self.assertIsNone(Ebb.memory_trim(device=device))
            self.assertGreater(Ebb.memory_get_limit(device), 0)
            self.assertEqual(Ebb.memory_get_stats(device).get_total(), Ebb.memory_stats()["total"]["current"])
            self.assertEqual(Ebb.to_device(Ebb.ones(2, device="sim"), device).device, "cpu")
            self.assertEqual(Ebb.scalar(2.0, "bf16", device).dtype, Ebb.bfloat16)
        self.assertEqual(Ebb.cast(Ebb.ones(2), "f16").dtype, Ebb.float16)
        self.assertIn("device: 'str | Device", str(inspect.signature(Ebb.memory_trim)))
        with self.assertRaisesRegex(TypeError, r"memory_trim\(\): device is 3: it must be an ebb.Device, or a name"):
            Ebb.memory_trim(3)
        with self.assertRaisesRegex(Ebb.Error, 'no device "abacus"'):
            Ebb.memory_trim("abacus")


class Values(TestCase):
    def test_values_come_out_of_a_device(self):
        x = Ebb.tensor([[1.0, 2.0], [3.0, 4.0]], device="sim")
        self.assertEqual(x.tolist(), [[1, 2], [3, 4]])
        self.assertEqual(x[1, 0].item(), 3)
        self.assertEqual(x[[1, 0]].tolist(), [[3, 4], [1, 2]])
        self.assertEqual(float((x * x).sum()), 30)
        self.assertIn("sim", repr(x))
        self.assertIn("4", repr(x))
        with self.assertRaises(Exception) as context:
            x.numpy()
        self.assertIn("copy the tensor to cpu", str(context.exception))

    def test_a_step_on_a_device_is_that_on_the_cpu(self):
        losses = []
        for device in ("cpu", "sim"):
            Ebb.manual_seed(3)
            with Ebb.default_device(device):
                model = Ebb.checkpoint_wrapper(Ebb.Sequential(Ebb.Linear(8, 8), Ebb.Tanh(), Ebb.Linear(8, 1)))
                optimizer = Ebb.AdamW(model, 0.01)
                x = Ebb.randn(4, 8)
                for _ in range(3):
                    loss = model(x).pow(2).mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
        self.assertEqual(*losses)


if __name__ == "__main__":
    main()
