#!/usr/bin/env python3
"""train_gpt on the emulated GPU: the CPU's losses but for rounding, the same bits whatever is checkpointed, stored or
repeated, the bytes of the emulated accelerator, and a training that goes on on another device."""
import json
import os
import subprocess
import tempfile
import unittest

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
PROGRAM = os.path.join(BUILD, "examples", "train_gpt")
MODEL = ["--layers", "4", "--width", "32", "--heads", "4", "--context", "16", "--batch", "2", "--dropout", "0.1",
         "--threads", "1", "--lr", "1e-3"]
STEPS = 10
PURPOSES = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes_peak", "cache_bytes",
            "host_peak_bytes")
HAS_EMULATION = os.path.exists(os.path.join(BUILD, "ebb-1.0", "backends", "ebb-backend-cudaemu.so"))


@unittest.skipUnless(HAS_EMULATION, "no emulated GPU in this build")
class TrainGptOnGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-train-gpt-cudaemu-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(100))

    def train(self, device, *words, steps=STEPS, **settings):
        done = subprocess.run([PROGRAM, "--data", "text.txt", *MODEL, "--quiet", "--report", "report.json", "--device",
                               device, "--steps", str(steps), *words], cwd=self.folder, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False,
                              env={**os.environ, **settings})
        self.assertEqual((done.returncode, done.stdout), (0, b""), words)
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
            return json.load(file)

    def assert_close(self, losses, right):
        self.assertEqual(len(losses), len(right))
        for loss, wanted in zip(losses, right):
            self.assertLessEqual(abs(loss - wanted), 1e-5 * wanted)

    def test_losses_are_those_of_the_cpu(self):
        self.assert_close(self.train("cudaemu")["losses"], self.train("cpu")["losses"])

    def test_every_strategy_has_the_same_bits_and_the_accelerators_bytes(self):
        plain = self.train("cudaemu", steps=3)["losses"]
        for words in ([], ["--checkpoint", "selective"], ["--checkpoint", "full"],
                      *(["--checkpoint", "full", "--store", store] for store in ("host", "disk", "contiguous"))):
            with self.subTest(words=words):
                report, on_sim = self.train("cudaemu", *words, steps=3), self.train("sim", *words, steps=3)
                self.assertEqual(report["losses"], plain)
                self.assertEqual([report[name] for name in PURPOSES], [on_sim[name] for name in PURPOSES])

    def test_no_order_of_blocks_warps_and_threads_changes_a_bit(self):
        words = ["--dtype", "bf16", "--moments", "8bit"]
        losses = [self.train("cudaemu", *words, steps=2, EBB_CUDAEMU_ORDER=order)["losses"] for order in "012"]
        self.assertEqual(losses, [losses[0]] * 3)

    def test_a_training_goes_on_on_the_other_device(self):
        right = self.train("cpu", steps=4)["losses"]
        for first, second in ("cpu", "cudaemu"), ("cudaemu", "cpu"):
            with self.subTest(first=first):
                state = f"from-{first}"
                self.train(first, "--resume", state, steps=2)
                self.assert_close(self.train(second, "--resume", state, steps=4)["losses"][-2:], right[-2:])


if __name__ == "__main__":
    unittest.main()
