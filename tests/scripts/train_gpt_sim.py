#!/usr/bin/env python3
"""train_gpt on the emulated device: the bits of the CPU, whatever is stored where; a model that fits only with a store;
bytes and peaks that are the same in every run.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ.get("EBB_BUILD_DIR", "build/release")
PROGRAM = os.path.join(os.path.abspath(BUILD), "examples", "train_gpt")
LAYERS, WIDTH, CONTEXT, BATCH = 6, 64, 64, 16
INPUT_BYTES = BATCH * CONTEXT * WIDTH * 4
MODEL = ["--layers", LAYERS, "--width", WIDTH, "--heads", 2, "--context", CONTEXT, "--batch", BATCH, "--dropout", 0.1,
         "--lr", 1e-3, "--threads", 1, "--steps", 3]
FULL = ["--checkpoint", "full"]


class SimTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ebb-train-gpt-sim-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(self.path("text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"Line {n} of {n * n}: the quick brown fox, naïvely.\n" for n in range(300))

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def run_program(self, *words, **settings):
        environment = {**os.environ, **{f"EBB_SIM_{name.upper()}": str(value) for name, value in settings.items()}}
        return subprocess.run([PROGRAM, *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=200, check=False)

    def train(self, *words, **settings):
        done = self.run_program("--data", "text.txt", *MODEL, "--quiet", "--report", "report.json", *words, **settings)
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, b"", b""), words)
        return json.loads(self.read("report.json"))

    def sim(self, *words, device="sim", **settings):
        return self.train("--device", device, *words, **settings)


class SameBits(SimTest):
    def test_losses_and_weights_are_those_of_the_cpu(self):
        for words in [], ["--checkpoint", "selective"], FULL, ["--dtype", "bf16"], [*FULL, "--threads", 2]:
            with self.subTest(words=words):
                cpu = self.train("--save", "cpu", *words)
                for device in "sim", "sim:1":
                    self.assertEqual(self.sim("--save", "sim", *words, device=device)["losses"], cpu["losses"])
                    self.assertEqual(self.read("cpu"), self.read("sim"))

    def test_each_store_gives_the_same_losses(self):
        for way in "none", "selective", "full":
            expected = self.train("--checkpoint", way)["losses"]
            for store in "keep", "host", "disk", "contiguous", "contiguous+host", "contiguous+disk":
                with self.subTest(way=way, store=store):
                    report = self.sim("--checkpoint", way, "--store", store)
                    self.assertEqual(report["losses"], expected)
                    self.assertEqual(report["store"]["bytes_put"] > 0, store != "keep")

    def test_a_training_goes_on_on_the_other_device(self):
        whole = self.train("--steps", 4, "--save", "whole")
        for first, second in ("sim", "cpu"), ("cpu", "sim"), ("sim", "sim:1"):
            state = f"state-{first}-{second}"
            begun = self.train("--steps", 2, "--device", first, "--resume", state)
            rest = self.train("--steps", 4, "--device", second, "--resume", state, "--save", "rest")
            self.assertEqual(begun["losses"] + rest["losses"], whole["losses"])
            self.assertEqual(self.read("rest"), self.read("whole"))

    def test_loaded_weights_say_the_same(self):
        self.train("--save", "weights")
        words = ["--load", "weights", "--steps", 0, "--quiet", "--sample", 30, "--prompt", "Line", "--threads", 1]
        cpu, sim = (self.run_program(*words, "--device", device) for device in ("cpu", "sim"))
        self.assertEqual((sim.returncode, sim.stderr), (0, b""))
        self.assertEqual(sim.stdout, cpu.stdout)

    def test_less_precision_and_steps_in_backward(self):
        words = ["--dtype", "bf16", "--residual", "bf16", "--moments", "8bit", "--step-in-backward", *FULL]
        expected = self.train(*words)["losses"]
        self.assertEqual(self.sim(*words, "--store", "host")["losses"], expected)


class Memory(SimTest):
    def test_what_does_not_fit_trains_with_a_store(self):
        deep = ["--layers", 12, "--batch", 32]
        expected = self.train(*deep, *FULL)
        for words, part in ([[], "not enough memory on sim: the model needs at least "],
                            [FULL, "out of memory on sim: "]):
            done = self.run_program("--data", "text.txt", *MODEL, *deep, *words, "--device", "sim", "--quiet",
                                    "--report", "none.json", "--save", "none", memory="21M")
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(part, done.stderr.decode())
            self.assertEqual(sorted(os.listdir(self.folder)), ["report.json", "text.txt"])
        self.assertIn("activations ", done.stderr.decode())
        for store in "host", "disk":
            report = self.sim(*deep, *FULL, "--store", store, memory="21M")
            self.assertEqual(report["losses"], expected["losses"])
            self.assertLess(report["peak_bytes"], 21 << 20)

    def test_what_fits_in_parts_is_not_refused(self):
        """Nine rows in parts of eight at most are five and four."""
        words = ["--layers", 100, "--width", 16, "--heads", 1, "--context", 128, "--batch", 9, "--micro-batch", 8,
                 "--steps", 2, *FULL]
        peak = self.sim(*words)["peak_bytes"]
        self.sim(*words, memory=str(peak + peak // 16))

    def test_peaks_are_lower_by_what_is_stored(self):
        # with gradients of a batch before, the most is in use when backward begins, whatever the store
        words = [*FULL, "--accumulate", 2]
        keep = self.sim(*words)
        for store in "host", "disk", "contiguous+host", "contiguous+disk":
            for ahead in 0, 1, 3:
                report = self.sim(*words, "--store", store, "--prefetch", ahead)
                with self.subTest(store=store, prefetch=ahead):
                    self.assertEqual(report["losses"], keep["losses"])
                    self.assertEqual(keep["peak_bytes"] - report["peak_bytes"], (LAYERS - ahead - 1) * INPUT_BYTES)
                    self.assertEqual(report["store"]["bytes_peak"], LAYERS * INPUT_BYTES)
                    self.assertEqual(report["store"]["bytes_put"], 3 * 2 * LAYERS * INPUT_BYTES)

    def test_what_finds_no_room_goes_to_the_fallback(self):
        words = [*FULL, "--batch", 64]  # an input of 1 MiB
        expected = self.train(*words)["losses"]
        for store, fallback in ("host", "disk"), ("host", "keep"), ("disk", "host"):
            report = self.sim(*words, "--store", store, "--store-fallback", fallback, "--store-limit", "2MiB")
            with self.subTest(store=store, fallback=fallback):
                self.assertEqual(report["losses"], expected)
                self.assertEqual(report["store"]["bytes_spilled"], 3 * (LAYERS - 2) << 20)
        done = self.run_program("--data", "text.txt", *MODEL, *words, "--device", "sim", "--quiet", "--store", "host",
                                "--store-limit", "2MiB")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("2097152", done.stderr.decode())
        for store in "contiguous+host", "contiguous+disk":
            done = self.run_program("--data", "text.txt", *MODEL, *words, "--device", "sim", "--quiet", "--store",
                                    store, "--store-limit", "2MiB")
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn("2097152", done.stderr.decode())

    def test_every_run_is_the_same(self):
        exact = "peak_bytes", "activation_bytes_peak", "workspace_bytes", "gradient_bytes", "losses"
        moved = "bytes_put", "bytes_got", "bytes_peak", "n_packed", "n_unpacked", "n_kept"
        for bandwidth in "", "20M", "1G,50M":
            settings = {"bandwidth": bandwidth} if bandwidth else {}
            runs = [self.sim(*FULL, "--store", "host", **settings) for _ in range(3)]
            for run in runs[1:]:
                self.assertEqual([run[key] for key in exact], [runs[0][key] for key in exact])
                self.assertEqual([run["store"][key] for key in moved], [runs[0]["store"][key] for key in moved])


class Telling(SimTest):
    def tell(self, store, *words, device="sim", **settings):
        done = self.run_program("--data", "text.txt", *MODEL, *FULL, "--device", device, "--store", store, *words,
                                **settings)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith("Store (")]
        self.assertEqual(len(lines), 1, done.stdout)
        return lines[0]

    def test_seconds_are_those_of_the_stores_behind_too(self):
        least = 3 * (2 * LAYERS - 1) * INPUT_BYTES / 20e6
        for store in "host", "contiguous+host":
            line = self.tell(store, bandwidth="20M")
            moving = re.search(r"for ([0-9.]+) s in all, of which compute waited ([0-9.]+) s: (\d+) %", line)
            self.assertIsNotNone(moving, line)
            self.assertGreaterEqual(float(moving[1]), least - 0.001)
            self.assertAlmostEqual(float(moving[3]) / 100, max(0, 1 - float(moving[2]) / float(moving[1])), delta=0.02)

    def test_what_stays_on_the_device_is_not_on_its_way(self):
        for store, device in ("contiguous", "sim"), ("contiguous", "cpu"), ("contiguous+host", "cpu"):
            line = self.tell(store, device=device)
            self.assertIn(f"copied within the memory of {device}", line)
            self.assertNotIn("on the way", line)


class Traces(SimTest):
    def read_trace(self, *words, **settings):
        """The events of each queue."""
        self.sim(*FULL, "--stream-trace", "trace.json", *words, **settings)
        events = json.loads(self.read("trace.json"))["traceEvents"]
        queues = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        return {name: [event for event in events if event["ph"] == "X" and event["tid"] == row]
                for row, name in queues.items()}

    def test_queues_of_a_step_stand_side_by_side(self):
        queues = self.read_trace("--store", "host", "--steps", 1, bandwidth="5M")
        self.assertEqual(set(queues), {"compute", "to_host", "from_host", "collective"})
        self.assertEqual(queues["collective"], [])
        for name, n_copies in ("to_host", LAYERS), ("from_host", LAYERS - 1):
            copies = [event for event in queues[name] if event["cat"] == "copy"]
            self.assertEqual([event["args"]["bytes"] for event in copies], [INPUT_BYTES] * n_copies)
            for event in copies:
                self.assertGreaterEqual(event["dur"], INPUT_BYTES / 5)
        self.assertGreater(sum(event["cat"] == "kernel" for event in queues["compute"]), 100)
        self.assertTrue([event for event in queues["compute"] if event["cat"] == "wait"])

    def test_without_a_store_nothing_is_copied(self):
        queues = self.read_trace()
        self.assertEqual((queues["to_host"], queues["from_host"]), ([], []))

    def test_a_profile_is_written_too(self):
        done = self.run_program("--data", "text.txt", *MODEL, *FULL, "--device", "sim", "--profile", "profile.json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        events = json.loads(self.read("profile.json"))["traceEvents"]
        self.assertTrue([event for event in events if event["name"] == "linear"])

    def test_a_device_without_queues_is_said_before_training(self):
        done = self.run_program("--data", "text.txt", *MODEL, "--stream-trace", "trace.json")
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (1, b"", 1))
        self.assertIn(b"--stream-trace: device cpu has no queues", done.stderr)
        self.assertEqual(os.listdir(self.folder), ["text.txt"])


class LateFailures(SimTest):
    """What fails when the last loss is known: the last step's updates, of which only the end of training can tell."""
    SMALL = ["--data", "text.txt", "--layers", 1, "--width", 16, "--heads", 2, "--context", 8, "--batch", 2,
             "--steps", 2, "--threads", 1, "--device", "sim"]
    FILES = ["--save", "weights", "--resume", "state", "--report", "report.json"]

    def fails(self, launch, *words):
        done = self.run_program(*self.SMALL, *words, fail=f"launch:{launch}")
        return done if done.returncode else None

    def last_launch(self, *words):
        """The number of the last launch of a run, from which on none fails."""
        low, high = 1, 64
        while self.fails(high, *words):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fails(middle, *words) else (low, middle)
        return low

    def test_a_failure_of_the_last_step_is_told(self):
        for words in [], ["--checkpoint", "full", "--store", "host"]:
            with self.subTest(words=words):
                last = self.last_launch(*words)
                done = self.fails(last, *words, *self.FILES)
                self.assertEqual((done.returncode, done.stderr.decode()),
                                 (1, "train_gpt: sim: adamw failed: asked to fail\n"))
                self.assertIn(b"step 2/2", done.stdout)
                self.assertEqual(os.listdir(self.folder), ["text.txt"])


class BadInput(SimTest):
    def test_settings_that_make_no_sense(self):
        for name in "memory", "bandwidth", "latency":
            done = self.run_program("--data", "text.txt", *MODEL, "--device", "sim", "--quiet", **{name: "some"})
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
            self.assertIn(f'EBB_SIM_{name.upper()} is "some"', done.stderr.decode())


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print(f"{PROGRAM} is not there")
        sys.exit(77)
    unittest.main(verbosity=2)
