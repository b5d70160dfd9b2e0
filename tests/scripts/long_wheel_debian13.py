#!/usr/bin/env python3
"""The wheel works on Debian 13, with its PyGObject 3.50 and with the newest from PyPI, which is on girepository-2.0.

The system is made by mmdebstrap, which needs root and Debian's archive, unless EBB_DEBIAN13 names a folder that has it.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("EBB_BUILD_DIR") or os.path.join(ROOT, "build", "release")
PACKAGES = ("python3-gi,python3-venv,python3-dev,libgirepository-2.0-dev,libcairo2-dev,gcc,pkg-config,"
            "libjson-glib-1.0-0,libgomp1,ca-certificates")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

PROGRAM = """
import gi
from gi.repository import Gio
import copy, ebb, pydoc
model = ebb.Gpt(ebb.GptConfig("tiny", layers=2, activation="silu"))
ebb.checkpoint_wrap_each(model, ebb.TransformerBlock, store=ebb.HostStore())
optimizer = ebb.AdamW(model.parameters(), 1e-2)
text = ebb.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
losses = []
for step in range(5):
    loss = model.loss(text[:, :-1], text[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert ebb.Tensor.equal(copy.deepcopy(ebb.Linear(2, 2)).weight, ebb.zeros(2, 2)) is False
assert "Raises: TypeError" in pydoc.plain(pydoc.render_doc(ebb.checkpoint_wrapper))
maps = open("/proc/self/maps").read()
print(gi.__version__, "libgirepository-2.0" in maps, "libgirepository-1.0" in maps, ebb.ones(2, device="sim"))
"""


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def find_missing():
    if os.getuid() != 0:
        return "only root can make another system"
    for program in ("patchelf", "readelf") + (() if "EBB_DEBIAN13" in os.environ else ("mmdebstrap",)):
        if not shutil.which(program):
            return f"{program} was not found"
    return None if os.path.exists(os.path.join(BUILD, "python", "ebb", "docs.json")) else "this build has no bindings"


class Debian13(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-debian13-")
        cls.addClassCleanup(folder.cleanup)
        cls.system = os.environ.get("EBB_DEBIAN13") or os.path.join(folder.name, "system")
        if "EBB_DEBIAN13" not in os.environ:
            done = run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", cls.system)
            if done.returncode != 0:
                raise unittest.SkipTest(f"Debian 13 can't be had here: {done.stderr.strip()[-300:]}")
        for name in (CERTIFICATES, "/etc/resolv.conf"):  # pip's, and names of hosts
            if os.path.exists(name):
                shutil.copy(name, cls.system + name)
        done = run(sys.executable, os.path.join(ROOT, "scripts", "package-wheel"), BUILD)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        wheels = glob.glob(os.path.join(ROOT, "build", "packages", "ebb_train-*.whl"))
        cls.wheel = os.path.basename(max(wheels, key=os.path.getmtime))
        shutil.copy(os.path.join(ROOT, "build", "packages", cls.wheel), os.path.join(cls.system, "root"))
        with open(os.path.join(cls.system, "root", "program.py"), "w", encoding="utf-8") as file:
            file.write(PROGRAM)

    def inside(self, script):
        """A script in the system, with /proc and without this one's settings."""
        return run("unshare", "--mount", "--", "sh", "-c", f"mount -t proc proc '{self.system}/proc' && exec "
                   f"chroot '{self.system}' env -i PATH=/usr/bin:/bin HOME=/root PIP_CERT={CERTIFICATES} "
                   f"OMP_NUM_THREADS=2 sh -euc '{script}'")

    def check(self, options, prepare, expected):
        done = self.inside(f"rm -rf /root/venv; python3 -m venv {options} /root/venv; {prepare}"
                           f"/root/venv/bin/pip -q install --no-index --no-deps /root/{self.wheel}; "
                           "cd /root; venv/bin/python program.py")
        self.assertEqual((done.returncode, done.stderr.strip()), (0, ""), done.stdout)
        self.assertRegex(done.stdout.strip(), expected)

    def test_with_debians_pygobject(self):
        self.check("--system-site-packages", "", r"^3\.50\.\d+ False True tensor\(\[1\., 1\.\], device='sim'\)$")

    def test_with_the_newest_pygobject(self):
        done = self.inside("rm -rf /root/newest; python3 -m venv /root/newest; "
                           "/root/newest/bin/pip -q install PyGObject")
        if done.returncode != 0:
            self.skipTest(f"the newest PyGObject can't be compiled here: {done.stderr.strip()[-300:]}")
        self.check("", "/root/venv/bin/pip -q install PyGObject; ", r"^3\.[5-9]\d\.\d+ True False tensor")


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    missing = find_missing()
    if missing is not None:
        print(missing)
        sys.exit(77)
    unittest.main(verbosity=2)
