"""How programs are run, how their steps are timed and how their memory is read: the one place for it.

A training is a program that takes steps when it is told to (`step --serve`, torch_step.py). Those of a row run side by
side, each waiting while another takes its turn, so that a slow drift of the machine meets all of them alike.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(BENCH))
GB = 1e9
TURN_SECONDS, MOST_STEPS = 0.5, 20
# What must be free for one more training: of the largest so far of the same program, or of another's.
ROOM, ROOM_FOR_ANOTHER = 1.3, 2.2


class Failure(Exception):
    """One line for the user: what is missing or went wrong, and what to do."""


def progress(text):
    print(text, file=sys.stderr, flush=True)


def environment(threads):
    return dict(os.environ, OMP_NUM_THREADS=str(threads))


def cache_folder():
    """For what is built for PyTorch; never in the tree."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(base, "ebb", "bench")
    os.makedirs(folder, exist_ok=True)
    return folder


def run_process(command, threads, name):
    """What a program prints; its failure is ours."""
    try:
        done = subprocess.run(command, env=environment(threads), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
    except OSError as error:
        raise Failure(f"{name}: can't run {command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Failure(f"{name}: exit status {done.returncode}: {lines[-1]}\n  command: {' '.join(command)}")
    return done.stdout


def peer_python():
    """The interpreter that has PyTorch, or None."""
    finder = subprocess.run([os.path.join(ROOT, "scripts", "peer-venv"), "--path"], stdout=subprocess.PIPE, text=True,
                            check=True)
    python = finder.stdout.strip()
    return python if os.path.exists(python) else None


def available_bytes():
    """Memory that a new process can have."""
    with open("/proc/meminfo", encoding="ascii") as info:
        for line in info:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def machine_seconds():
    """Processor seconds that all programs have used since the machine started, those that its host took included."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _, _, irq, softirq, steal = (int(word) for word in stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        words = stat.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Training:
    """One program that takes steps when it is told to, and what was measured of it."""

    def __init__(self, name, command, threads, warm_up=2, optional=False, alone=False, questions=()):
        self.name, self.command, self.threads = name, [str(word) for word in command], threads
        self.warm_up_steps, self.optional, self.alone = warm_up, optional, alone
        self.questions = questions  # asked after the last turn
        self.process = self.messages = None
        self.warm_up, self.turns, self.last, self.answers = [], [], {}, {}
        self.others = []  # of each turn: the share of the machine that was not ours

    def start(self):
        self.messages = tempfile.TemporaryFile("w+", encoding="utf-8")
        extra = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(cache_folder(), "inductor")}
        try:
            self.process = subprocess.Popen(self.command, env={**environment(self.threads), **extra}, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.messages)
        except OSError as error:
            raise Failure(f"{self.name}: can't run {self.command[0]}: {error.strerror}") from error
        self.hello = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status = self.process.wait()
        self.messages.seek(0)
        words = self.messages.read().strip().splitlines() or ["no message"]
        raise Failure(f"{self.name}: exit status {status}: {words[-1]}\n  command: {' '.join(self.command)}")

    def ask(self, words):
        try:
            self.process.stdin.write(f"{words}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() tells why
        return self.read()

    def warm(self):
        answer = self.ask(self.warm_up_steps)
        self.first_loss = answer["first_loss"]
        self.warm_up += answer["seconds"]
        self.last = answer

    def take_turn(self, n):
        """So many steps; a turn's figure is their median."""
        pid = self.process.pid
        start, all_before, own_before = time.monotonic(), machine_seconds(), process_seconds(pid)
        self.last = self.ask(n)
        others = (machine_seconds() - all_before) - (process_seconds(pid) - own_before)
        self.others.append(max(0.0, others / (time.monotonic() - start) / os.cpu_count()))
        self.turns.append(statistics.median(self.last["seconds"]))

    def ask_questions(self):
        for question in self.questions:
            self.answers[question] = self.ask(question)

    def stop(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.messages.close()
            self.process = None

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.stop()

    def result(self):
        ordered = sorted(self.turns)
        resident = self.last["resident_bytes"]
        return {
            "seconds": statistics.median(ordered),
            "low": ordered[0],
            "high": ordered[-1],
            "turns": self.turns,
            "others": self.others,
            "warm_up": self.warm_up,
            "resident_bytes": resident,
            "above_bytes": resident - self.hello["library_bytes"],
            "kept_bytes": self.answers.get("kept", self.last).get("kept_bytes"),
            "peak_bytes": self.last.get("peak_bytes"),
            "purposes": {key: self.last[f"{key}_bytes"] for key in
                         ("parameters", "gradients", "optimizer", "activations", "workspace")
                         if f"{key}_bytes" in self.last},
            "parameters": self.hello["parameters"],
            "first_loss": self.first_loss,
            "last_loss": self.last["loss"],
        }


def steps_of_a_turn(group):
    """A turn begins with caches that hold what the one before left there: of short steps it takes several."""
    longest = max(training.warm_up[-1] for training in group)
    return min(MOST_STEPS, max(1, round(TURN_SECONDS / longest)))


def run_together(trainings, rounds, say=lambda text: None):
    """Measures trainings in turn, as many at a time as the memory holds, and calls @say with what happens.

    The order turns from round to round. Gives the names of each group that ran together.
    """
    waiting, groups = list(trainings), []
    while waiting:
        group = []
        try:
            fill_group(group, waiting, say)
            steps = steps_of_a_turn(group) if group else 0
            for turn in range(rounds if group else 0):
                for i in range(len(group)):
                    group[(i + turn) % len(group)].take_turn(steps)
            for training in group:
                training.ask_questions()
                training.stop()
                say(f"{training.name:34s} {statistics.median(training.turns):9.4f} s/step "
                    f"{training.last['resident_bytes'] / GB:6.2f} GB resident, others had "
                    f"{max(training.others):.0%} of the machine at most")
        finally:
            for training in group:
                training.kill()
        groups.append([training.name for training in group])
    return [group for group in groups if group]


def has_room(group, training):
    same = [other.last["resident_bytes"] for other in group if other.command[0] == training.command[0]]
    others = [other.last["resident_bytes"] for other in group]
    needed = ROOM * max(same) if same else ROOM_FOR_ANOTHER * max(others, default=0)
    return not group or not (group[0].alone or training.alone) and available_bytes() > needed


def fill_group(group, waiting, say):
    """Starts trainings while there is room for one as large as the largest so far."""
    while waiting and has_room(group, waiting[0]):
        training = waiting.pop(0)
        group.append(training)
        try:
            training.start()
            training.warm()
        except Failure as failure:
            if not training.optional:
                raise
            training.kill()
            group.pop()
            say(f"{training.name}: left out: {failure}")
            continue
        say(f"{training.name:34s} warm: {', '.join(f'{seconds:.3g}' for seconds in training.warm_up[:3])} s")
