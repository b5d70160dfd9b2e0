#!/usr/bin/env python3
"""fsdp_gpt on the emulated GPU, which its processes share over a stand-in for NCCL: the losses are those of ranks that
are threads on the CPU, but for rounding, however the model is sharded and whatever is offloaded."""
import json
import os
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(BUILD, "examples", "ebb-fsdp-gpt")
LAUNCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cudaemu", "nccl", "launch")
MODULES = [os.path.join(BUILD, "tests", "cudaemu", "modules"), os.path.join(BUILD, "ebb-1.0", "backends")]
MODEL = ["--layers", "2", "--width", "36", "--heads", "2", "--context", "16", "--batch", "4", "--lr", "3e-4",
         "--threads", "1", "--steps", "4", "--clip", "0.5"]
TOLERANCE = 1e-5
IS_LONG = bool(os.environ.get("EBB_LONG"))
HAS_EMULATION = os.path.exists(os.path.join(MODULES[1], "ebb-backend-cudaemu.so"))


@unittest.skipUnless(HAS_EMULATION, "no emulated GPU in this build")
class FsdpGptOnGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-fsdp-gpt-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(100))

    def run_program(self, command, *words, **more):
        environment = {**os.environ, **more, "EBB_BACKEND_PATH": ":".join(MODULES), "EBB_PROCESS_GROUP_TIMEOUT": "60",
                       "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*command, PROGRAM, "--data", "text.txt", *MODEL, "--quiet", "--report", "report.json",
                               *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=100, check=False, env=environment)
        self.assertEqual((done.returncode, done.stdout), (0, b""))
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
            return json.load(file)

    def check(self, n_ranks, *words, tolerance=TOLERANCE):
        """Returns the losses on the emulated GPU."""
        expected = self.run_program([], "--ranks", n_ranks, *words)["losses"]
        losses = self.run_on_gpu(n_ranks, *words)
        self.assertEqual(len(losses), len(expected))
        for loss, other in zip(losses, expected):
            self.assertAlmostEqual(loss, other, delta=tolerance * other)
        return losses

    def run_on_gpu(self, n_ranks, *words, **more):
        return self.run_program([LAUNCH, str(n_ranks)], "--device", "cudaemu", *words, **more)["losses"]

    def test_losses_are_those_of_the_cpu_and_of_a_gpu_for_each_rank(self):
        words = ["--dropout", 0.1, "--checkpoint", "full", "--store", "host"]
        losses = self.check(2, *words)
        # No process may make a context on the other's GPU.
        self.assertEqual(self.run_on_gpu(2, *words, EBB_CUDAEMU_DEVICES="2", EBB_CUDAEMU_CONTEXTS="1"), losses)

    def test_four_ranks_in_two_groups(self):
        self.check(4, "--shard", "hybrid", "--shard-size", 2)

    @unittest.skipUnless(IS_LONG, "EBB_LONG is not set")
    def test_ways_to_shard(self):
        for words in [], ["--shard", "none"], ["--reshard", "never"], ["--offload-parameters"], ["--flatten"]:
            with self.subTest(words=words):
                self.check(2, *words)

    @unittest.skipUnless(IS_LONG, "EBB_LONG is not set")
    def test_sixteen_bits(self):
        for n_ranks in 2, 4:
            self.check(n_ranks, "--compute-dtype", "bf16", tolerance=5e-3)


if __name__ == "__main__":
    unittest.main()
