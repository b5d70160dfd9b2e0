#!/usr/bin/env python3
"""nested_activations and oslo_gpt2 on the emulated GPU: what they find out themselves, with the accelerator's bytes."""
import os
import subprocess
import unittest

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
HAS_EMULATION = os.path.exists(os.path.join(BUILD, "ebb-1.0", "backends", "ebb-backend-cudaemu.so"))


@unittest.skipUnless(HAS_EMULATION, "no emulated GPU in this build")
class ExamplesOnGpu(unittest.TestCase):
    def run_program(self, program, device, *words):
        done = subprocess.run([os.path.join(BUILD, "examples", program), "--device", device, *map(str, words)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def test_nested_activations_saves_the_same_bytes(self):
        tables = []
        for device in "sim", "cudaemu":
            output = self.run_program("nested_activations", device, "--blocks", 2, "--width", 16, "--heads", 2,
                                      "--batch", 2, "--tokens", 8)
            lines = [line for line in output.split("\n\n")[1].splitlines()[1:] if line.strip()]
            # All columns but the most at a time, in which the kernels' workspace counts.
            rows = [(line[:22].strip(), *line[22:].split()) for line in lines]
            tables.append([row[:4] + row[5:] for row in rows])
        self.assertGreater(len(tables[0]), 5)
        self.assertEqual(*tables)

    def test_oslo_gpt2_has_equal_losses_in_all_rows(self):
        output = self.run_program("oslo_gpt2", "cudaemu", "--preset", "tiny", "--layers", 2, "--width", 32, "--heads",
                                  2, "--batch", 2, "--sequence", 8, "--ranks", 2)
        self.assertIn("The losses of all rows are equal, bit for bit.", output)


if __name__ == "__main__":
    unittest.main()
