"""A limit of address space, as that of ulimit -v, and what a process maps that has next to no tensors."""
import re
import resource
import subprocess

IDLE = ["--layers", "1", "--width", "8", "--heads", "1", "--steps", "1000000"]
NO_LIMIT = 1 << 40  # under any limit the heap maps no more than is resident


def limit_to(n_bytes):
    """For a process before it starts; of 0 or None bytes: nothing."""
    return n_bytes and (lambda: resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes)))


def map_idle(train_gpt, data, *words):
    """The most bytes that a training with its threads maps until its first step is done."""
    with subprocess.Popen([train_gpt, "--data", data, *IDLE, *words], stdout=subprocess.PIPE, text=True,
                          preexec_fn=limit_to(NO_LIMIT)) as process:
        while not process.stdout.readline().startswith("step"):
            pass
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as status:
            found = re.search(r"VmPeak:\s+(\d+) kB", status.read())
        process.kill()
    return int(found[1]) << 10
