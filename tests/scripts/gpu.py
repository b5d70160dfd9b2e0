#!/usr/bin/env python3
"""scripts/gpu, which is for machines with a GPU, on the emulated one: each command runs its parts to the end, keeps
what they gave, and goes on where it stopped. The speed of an emulated GPU says nothing, so none is asked for. Instead
of programs that fail or hang, shell scripts run."""
import argparse
import glob
import json
import os
import runpy
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HAS_EMULATION = os.path.exists(os.path.join(BUILD, "ebb-1.0", "backends", "ebb-backend-cudaemu.so"))
# compute-sanitizer's place is taken by a program that only runs what it is given.
SANITIZER = """#!/bin/sh
[ "$1 $3 $4 $5 $6" = "--tool --error-exitcode 9 --target-processes all" ] || exit 3
echo "$2" >>"$(dirname "$0")/tools"
shift 6
exec "$@"
"""


class ScriptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-gpu-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_script(self, *words, status=0, script="gpu", **more):
        done = subprocess.run([os.path.join(ROOT, "scripts", script), *words], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280, check=False,
                              env={**os.environ, **more})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr


@unittest.skipUnless(HAS_EMULATION, "no emulated GPU in this build")
class GpuScript(ScriptTest):
    def run_parts(self, command, *words, **more):
        """What the command gave of each part."""
        self.run_script(command, "--device", "cudaemu", "--build", BUILD, "--out", self.folder, "--python", "", *words,
                        **more)
        with open(os.path.join(self.folder, f"{command}.json"), encoding="utf-8") as file:
            return json.load(file)["parts"]

    def test_check_runs_tests_and_trainings(self):
        parts = self.run_parts("check", "--only", "^(queues|products|threads|waits|losses as on the cpu)$")
        self.assertEqual(sorted(parts), ["losses as on the cpu", "products", "queues", "threads", "waits"])
        self.assertLessEqual(parts["losses as on the cpu"]["figures"]["worst"], 1e-5)

    def test_a_call_goes_on_where_one_stopped(self):
        words = ["check", "--device", "cudaemu", "--build", BUILD, "--out", self.folder, "--only",
                 "^(products|threads)$"]
        self.assertIn("2 parts are left", self.run_script(*words, "--seconds", "1e-9", status=3))
        self.assertIn("[1/2] products: ok", self.run_script(*words))
        self.assertNotIn("[1/", self.run_script(*words))
        self.assertIn("[2/2]", self.run_script(*words, "--again"))

    def test_parts_say_what_failed(self):
        words = ["check", "--device", "cudaemu", "--build", BUILD, "--out", self.folder]
        output = self.run_script(*words, "--only", "^(losses|threads|products)", "--jobs", "3", status=1,
                                 EBB_CUDA_MEMORY="100K")
        self.assertIn("3 parts, 2 of them failed", output)
        self.assertRegex(output, "FAIL .* losses as on the cpu: says .*cudaemu")
        with open(os.path.join(self.folder, "check", "tensor-cuda-products.txt"), encoding="utf-8") as file:
            self.assertIn("out of memory", file.read())
        self.assertIn("it must be at least 1", self.run_script(*words, "--jobs", "0", status=2))
        self.assertIn("slow each other down", self.run_script("bench", "--jobs", "2", status=2))

    def test_a_test_that_takes_too_long_is_ended(self):
        output = self.run_script("check", "--device", "cudaemu", "--build", BUILD, "--out", self.folder, "--only",
                                 "^products$", "--timeout", "0.001", status=1)
        self.assertRegex(output, "FAIL .* products: says .*status 124")

    def test_a_packed_build_runs_elsewhere(self):
        build, packed = os.path.join(self.folder, "build"), os.path.join(self.folder, "packed")
        for pattern in ("libebb-1.0.so*", "ebb-1.0/backends/*cudaemu*", "tests/cudaemu/libcudaemu.so",
                        "tests/tensor/cuda/threads"):
            for path in glob.glob(os.path.join(BUILD, pattern)):
                target = os.path.join(build, os.path.relpath(path, BUILD))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(path, target)
        self.run_script("pack", packed, "--build", build)
        self.assertIn("is there already", self.run_script("pack", packed, "--build", build, status=1))
        self.assertTrue(glob.glob(os.path.join(packed, "build", "release", "lib", "libglib-2.0.so*")))
        shutil.rmtree(build)
        words = ["check", "--device", "cudaemu", "--only", "^threads$"]
        done = subprocess.run([os.path.join(packed, "scripts", "gpu"), *words],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_sanitize_hands_each_tool_each_test(self):
        tool = os.path.join(self.folder, "compute-sanitizer")
        with open(tool, "w", encoding="utf-8") as file:
            file.write(SANITIZER)
        os.chmod(tool, 0o755)
        parts = self.run_parts("sanitize", "--only", " tensor/cuda/products$",
                               PATH=f"{self.folder}:{os.environ['PATH']}")
        with open(os.path.join(self.folder, "tools"), encoding="utf-8") as file:
            self.assertEqual(file.read().split(), ["memcheck", "racecheck", "initcheck", "synccheck"])
        self.assertEqual(len(parts), 4)

    def test_bench_gives_each_row_its_figures(self):
        parts = self.run_parts("bench", "--only", "^(kernels|GPT|Llama)")
        names = self.run_script("bench", "--list").splitlines()
        self.assertEqual(sorted(parts), sorted(name for name in names if not name.startswith("host time")))
        for name, part in parts.items():
            self.assertTrue(part["ok"], name)
            if name != "kernels":
                self.assertGreater(part["figures"]["ebb tokens/s"], 0)
                self.assertGreater(part["figures"]["ebb host's share"], 0)
                self.assertEqual("not offloaded ms" in part["figures"], "offloaded" in name)
        rates = parts["kernels"]["figures"]
        for kernel in ("copy", "add", "layer_norm_grad", "softmax", "cross_entropy", "adamw", "embedding_grad"):
            self.assertGreater(rates[f"{kernel} GB/s"], 0)
        self.assertGreater(rates["attention TFLOP/s"], 0)

    def test_scripts_bench_hands_over_to_it(self):
        report = os.path.join(self.folder, "raw.json")
        output = self.run_script("--device", "cudaemu", "--only", "kernels", "--no-torch", "--build", BUILD, "--json",
                                 report, script="bench")
        self.assertIn("kernels: copy GB/s", output)
        with open(report, encoding="utf-8") as file:
            self.assertEqual(list(json.load(file)["parts"]), ["kernels"])
        self.assertIn("--write is for the CPU", self.run_script("--device", "cudaemu", "--write", status=2,
                                                                 script="bench"))


class StandIns(ScriptTest):
    """A build whose programs are shell scripts. Those that must not run to their end sleep, then say so in a pipe; it
    ends with the last process that has it open."""

    def setUp(self):
        super().setUp()
        self.build, self.out = os.path.join(self.folder, "build"), os.path.join(self.folder, "out")
        os.makedirs(os.path.join(self.build, "ebb-1.0"))
        self.words = ("--build", self.build, "--out", self.out, "--python", "")
        self.pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(self.pipe)

    def put(self, path, *lines, folder="build/tests"):
        path = os.path.join(self.folder, folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(["#!/bin/sh", f"cd '{self.folder}'", *lines, ""]))
        os.chmod(path, 0o755)

    def read_parts(self, command):
        with open(os.path.join(self.out, f"{command}.json"), encoding="utf-8") as file:
            return json.load(file)["parts"]

    def listen(self):
        """A function that waits until no process has the pipe open, and gives what was written."""
        reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)

        def read():
            os.set_blocking(reader, True)
            return b"".join(iter(lambda: os.read(reader, 1000), b"")).decode()

        return read

    def test_parts_run_at_one_time(self):
        # Each waits at the pipe for the other.
        self.put("tensor/cuda/queues", "echo met >pipe")
        self.put("tensor/cuda/products", "read -r word <pipe && test $word = met")
        self.run_script("check", *self.words, "--only", "^(queues|products)$", "--jobs", "2", "--timeout", "60")

    def test_an_interrupted_call_keeps_what_was_done_and_ends_what_runs(self):
        for signal, status in (("INT", 130), ("TERM", 143)):
            self.put("tensor/cuda/queues", "exit 0")
            self.put("tensor/cuda/products", "exec 3>pipe", f"kill -{signal} $PPID", "sleep 20", "echo survived >&3")
            self.put("tensor/cuda/threads", "touch begun")
            read = self.listen()
            self.run_script("check", *self.words, "--only", "^(queues|products|threads)$", "--again", status=status)
            self.assertEqual(read(), "")
            self.assertFalse(os.path.exists(os.path.join(self.folder, "begun")))
            self.assertEqual(list(self.read_parts("check")), ["queues"])

    def test_a_part_that_raises_has_failed(self):
        self.put("bench/kernels", "echo no JSON")
        self.put("bench/cuda-host", "echo '{}'")
        output = self.run_script("bench", *self.words, "--only", "^(kernels|host)", status=1)
        self.assertRegex(output, "FAIL .* kernels: says JSONDecodeError: ")
        self.assertIn("2 parts, 1 of them failed", output)

    def test_a_late_test_is_ended_with_what_it_started(self):
        self.put("compute-sanitizer", "shift 6", '"$@"', "exit", folder="tools")
        self.put("tensor/cuda/queues", "exec 3>pipe", "echo begun", "sleep 20", "echo survived >&3")
        read = self.listen()
        output = self.run_script("sanitize", *self.words, "--only", "^memcheck tensor/cuda/queues$", "--timeout", "2",
                                 status=1, PATH=f"{self.folder}/tools:{os.environ['PATH']}")
        self.assertRegex(output, "FAIL .* says .*status 124")
        self.assertEqual(read(), "")

    def test_a_timeout_takes_the_place_of_limits_of_parts(self):
        gpu = runpy.run_path(os.path.join(ROOT, "scripts", "gpu"), run_name="gpu")
        options = argparse.Namespace(build=self.build, libs=[], out=self.out, command="check", timeout=None)
        self.assertEqual(gpu["Machine"](options).run(["sleep", "20"], 0.01), (124, ""))
        options.timeout = 60
        self.assertEqual(gpu["Machine"](options).run(["sleep", "0.1"], 0.01), (0, ""))
        self.assertIn("must be above 0", self.run_script("check", *self.words, "--timeout", "0", status=2))

    def test_a_side_that_hangs_or_fails_ends_before_the_next(self):
        # That of the offloaded step is ready, and answers no more than what is in a file.
        self.put("bench/step", 'case "$*" in',
                 "  *--offload*) echo $$ >first; exec 3>pipe; echo '{}'; read -r n; cat answer",
                 "     sleep 20; echo survived >&3;;",
                 "  *) kill -0 $(cat first) && touch both",
                 "     echo '{}'; while read -r n; do echo '{\"seconds\": [0.5]}'; done;;",
                 "esac")
        words = ("bench", *self.words, "--only", "^GPT.*offloaded", "--again")
        for answer, timeout, expected in (("", 2, "it took longer than 2 s"), ("no JSON\n", 60, "Expecting value")):
            with open(os.path.join(self.folder, "answer"), "w", encoding="utf-8") as file:
                file.write(answer)
            read = self.listen()
            output = self.run_script(*words, "--timeout", str(timeout), status=1)
            self.assertRegex(output, f"FAIL .*: ebb says {expected}")
            self.assertEqual(read(), "")
            self.assertFalse(os.path.exists(os.path.join(self.folder, "both")))
        self.assertIn("not offloaded ms 500.0", output)

    def test_texts_of_failed_tests_are_kept_until_they_pass(self):
        text = os.path.join(self.out, "check", "tensor-cuda-queues.txt")
        words = ("check", *self.words, "--only", "^queues$")
        self.put("tensor/cuda/queues", "echo wrong", "exit 1")
        self.run_script(*words, status=1)
        with open(text, encoding="utf-8") as file:
            self.assertEqual(file.read(), "wrong\n")
        self.put("tensor/cuda/queues", "exit 0")
        self.run_script(*words)
        self.assertFalse(os.path.exists(text))
        self.put("tensor/cuda/queues", "exit 1")
        self.run_script(*words, "--again", status=1)
        self.assertTrue(os.path.exists(text))
        self.put("tensor/cuda/products", "exit 0")
        self.run_script("check", *self.words, "--only", "^products$", "--again")
        self.assertFalse(os.path.exists(text))

    def test_a_gpu_has_rates_of_copies_to_the_host_and_back(self):
        self.put("bench/kernels", 'echo \'{"copy_gbs": 2, "add_gbs": 2, "from_host_gbs": 1}\'')
        output = self.run_script("bench", *self.words, "--only", "^kernels$", status=1)
        self.assertRegex(output, "FAIL .* kernels: .*from_host GB/s 1.*says there is no rate of to_host\n")
        self.run_script("bench", *self.words, "--only", "^kernels$", "--device", "cudaemu")
        self.put("bench/kernels", 'echo \'{"copy_gbs": 2, "add_gbs": 2, "to_host_gbs": 1, "from_host_gbs": 1}\'')
        self.run_script("bench", *self.words, "--only", "^kernels$", "--again")

    def test_options_that_do_not_concern_a_command_are_refused(self):
        packed = os.path.join(self.folder, "packed")
        self.assertIn("--only: it does not concern pack",
                      self.run_script("pack", packed, "--build", self.build, "--only", "queues", status=2))
        self.assertIn("concern pack alone", self.run_script("check", packed, "--list", status=2))
        self.assertFalse(os.path.exists(packed))


unittest.main()
