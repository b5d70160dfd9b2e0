#!/usr/bin/env python3
"""TensorBoard itself reads what --log writes; it needs scripts/peer-venv.

A training is killed and resumed; each step's numbers must be there once, with the values of steps.jsonl.
"""
import json
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ.get(
    "EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
)
BUILD = os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release"))
PROGRAM = os.path.join(BUILD, "examples", "train_gpt")

if not os.environ.get("EBB_LONG"):
    print("EBB_LONG is not set")
    sys.exit(77)
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    PEER = subprocess.run(
        [os.path.join(SOURCE, "scripts", "peer-venv"), "--path"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if sys.executable == PEER or not os.path.exists(PEER):
        print("The package tensorboard is missing: scripts/peer-venv installs it", file=sys.stderr)
        sys.exit(77)
    os.execv(PEER, [PEER, *sys.argv])

NAMES = {"loss": "train/loss", "lr": "train/lr", "seconds": "speed/seconds",
         "tokens_per_second": "speed/tokens_per_second", "peak_bytes": "memory/peak_bytes",
         "rss_peak_bytes": "memory/rss_peak_bytes", "eval_loss": "eval/loss", "eval_perplexity": "eval/perplexity"}


def train(folder, *words, **more):
    return subprocess.run(
        [PROGRAM, "--data", "text.txt", "--eval", "0.2", "--eval-every", "3", "--layers", "1", "--width", "16",
         "--heads", "2", "--context", "16", "--batch", "2", "--steps", "9", "--save-every", "4", "--resume", "state",
         "--log", "log", "--quiet", *words], cwd=folder, env={**os.environ, **more}, check=False).returncode


with tempfile.TemporaryDirectory(prefix="ebb-event-files-") as place:
    with open(os.path.join(place, "text.txt"), "w", encoding="utf-8") as text:
        text.writelines(f"Line {n}: the quick brown fox.\n" for n in range(99))
    assert train(place, EBB_GPT_JOB_FAULT="0:update:7:kill") != 0
    assert train(place) == 0
    with open(os.path.join(place, "log", "steps.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert [line["step"] for line in lines] == list(range(1, 10)), lines
    reader = EventAccumulator(os.path.join(place, "log"))
    reader.Reload()
    assert sorted(reader.Tags()["scalars"]) == sorted(NAMES.values()), reader.Tags()
    for name, tag in NAMES.items():
        wanted = [(line["step"], line[name]) for line in lines if name in line]
        found = [(event.step, event.value) for event in reader.Scalars(tag)]
        assert [step for step, _ in wanted] == [step for step, _ in found], (tag, wanted, found)
        for (_, mine), (_, other) in zip(wanted, found):
            assert abs(mine - other) <= 1e-6 * abs(mine), (tag, mine, other)
print("TensorBoard reads each step once, with its values")
