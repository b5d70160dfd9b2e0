"""A control group, whose processes are killed where they use more memory than it has."""
import contextlib
import os
import time

LIMITS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


def write(folder, name, text):
    with open(os.path.join(folder, name), "r+", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def make_group(n_bytes):
    """What a process calls before it starts, to be in the group; None where this process may make no groups."""
    for root, limit in LIMITS.items():
        folder = os.path.join(root, f"ebb-test-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            write(folder, limit, str(n_bytes))
            yield lambda joined=folder: write(joined, "cgroup.procs", "0")
            return
        except FileNotFoundError:    # no folder of groups, or of groups without memory
            pass
        finally:
            remove(folder)
    yield None


def remove(folder):
    """A group is busy until the last of its processes is gone."""
    for _ in range(100):
        try:
            os.rmdir(folder)
            return
        except OSError:
            time.sleep(0.05)
