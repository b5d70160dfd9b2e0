"""Small models with budgets between their least and their need: how a budget of the process is used.

measure() trains one model without a budget, by each uniform choice, and within a budget, by the program and from
Python, and returns what was seen.
"""
import json
import os
import re
import statistics
import subprocess

BUILD = os.path.abspath(os.environ.get("EBB_BUILD_DIR", "build/release"))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.path.join(BUILD, "examples", "train_gpt")
MIB = 1 << 20
UNIFORM = ("none", "selective", "full")

# A loop of one's own: a program that holds arrays of its own, plans, and reports its resident bytes and its times.
LOOP = """
import json, sys, time
import numpy
import ebb
options, budget, path, n_steps = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
ebb.set_num_threads(options["threads"])
held = numpy.ones(int(options["held"]) // 8)
tokenizer = ebb.ByteTokenizer()
data = ebb.TextDataset([path], tokenizer, 0)
ebb.manual_seed(0)
model = ebb.Gpt(ebb.GptConfig(layers=options["layers"], width=options["width"], heads=options["heads"],
                              context=options["context"], vocab=256, dropout=0.0))
optimizer = ebb.AdamW(model, 1e-3)
def step():
    tokens, targets = data.get_rows(options["batch"], options["context"])[:2]
    loss = model.loss(tokens, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
training = ebb.TrainingState(module=model, optimizer=optimizer, dataset=data)
def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))
result = {}
try:
    if budget:
        kept = ebb.MemoryBudget(budget)
        kept.connect("note", lambda _, text: result.setdefault("notes", []).append(text))
        kept.plan(training, step)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    seconds = []
    for _ in range(n_steps):
        began = time.monotonic()
        kept.run_step(step) if budget else step()
        seconds.append(time.monotonic() - began)
    result.update(rss_peak_bytes=resident("VmHWM:"), step_seconds=seconds)
except ebb.Error as error:
    result["refused"] = str(error)
print(json.dumps(result))
"""


def draw_model(rng):
    """Options of a model whose step needs some 48 MiB to 2 GiB."""
    heads = rng.choice([1, 2, 4])
    width = heads * rng.choice([16, 24, 32, 48, 64])
    return {"layers": rng.randint(3, 12), "width": width, "heads": heads, "context": 32 * rng.randint(2, 12),
            "batch": rng.randint(2, 24), "threads": rng.choice([1, 2])}


def to_words(model):
    return [word for name, value in model.items() if name != "held" for word in (f"--{name}", str(value))]


class Measured:
    """Trainings of one model, each a process of its own."""
    def __init__(self, model, text, folder, n_steps=6):
        self.model, self.text, self.folder, self.n_steps = model, text, folder, n_steps
        self.environment = {**os.environ, "EBB_COST_FILE": os.path.join(folder, "costs"), "GI_TYPELIB_PATH": BUILD,
                            "LD_LIBRARY_PATH": BUILD, "PYTHONPATH": os.path.join(SOURCE, "bindings", "python"),
                            "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *words):
        """The report of a training; an error's text where it was refused."""
        report = os.path.join(self.folder, "report.json")
        done = subprocess.run([PROGRAM, "--data", self.text, "--dropout", "0", "--steps", str(self.n_steps), "--quiet",
                               "--report", report, *to_words(self.model), *map(str, words)], cwd=self.folder,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment,
                              check=False)
        if done.returncode != 0:
            return done.stderr.strip()
        with open(report, encoding="utf-8") as file:
            return json.load(file)

    def run_python(self, budget):
        done = subprocess.run(["/usr/bin/python3", "-c", LOOP, json.dumps(self.model), str(budget), self.text,
                               str(self.n_steps)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    def find_least(self):
        """The least budget, by a refusal."""
        return int(float(re.search(r"needs at least ([\d.]+) MiB", self.run("--memory", "1MiB"))[1]) * MIB)


def get_seconds(report):
    """The median of the steps after those that are planned by."""
    return statistics.median(report["step_seconds"][2:])


def unused(report, budget):
    return 1 - report["rss_peak_bytes"] / budget


def draw_budget(rng, least, need):
    return int(least + rng.random() * max(need - least, 0))
