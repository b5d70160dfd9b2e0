#!/usr/bin/env python3
"""The Debian packages are clean under lintian, install in a bare Debian 12, work there in every language, and are
removed without a trace.

scripts/package deb makes them, unless EBB_PACKAGES names a folder that has them. The bare system is made by mmdebstrap,
which needs root and Debian's archive.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))
from document_blocks import read_blocks  # noqa: E402

PACKAGES = os.environ.get("EBB_PACKAGES", os.path.join(ROOT, "build", "packages"))
# What the consumers are built and run with; the packages bring the rest.
TOOLS = ["gcc", "g++", "libc6-dev", "cmake", "make", "pkg-config", "valac", "gjs", "python3-minimal", "man-db",
         "bash-completion"]
# Files that a system writes about itself.
OWN = re.compile(r"/(proc|sys|dev|run|tmp|root|packages)(/|$)|/var/(cache|log|lib/(apt|dpkg|systemd))(/|$)")
BINARIES = ["ebb-finetune", "ebb-fsdp-gpt", "ebb-generate", "ebb-train-bert",
            "ebb-train-gpt"]


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)[:300]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def find_missing():
    """Why there can be no bare system; None: there can."""
    if os.geteuid() != 0:
        return "a bare system is made by root"
    for program, package in (("mmdebstrap", "mmdebstrap"), ("lintian", "lintian"), ("dh", "debhelper")):
        if not shutil.which(program):
            return f"{program} was not found: install {package}"
    if subprocess.run(["unshare", "--mount", "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return "there are no namespaces of mounts"
    return None


class Bare:
    """A bare Debian 12 with the tools of developers, and the packages in /packages."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "bare")
        run("mmdebstrap", "--mode=root", "--variant=apt", "bookworm", self.path)
        for name in ["/etc/resolv.conf", *glob.glob("/etc/apt/apt.conf.d/*prox*")]:
            shutil.copy(name, self.path + name)
        self.install(*TOOLS)
        os.mkdir(os.path.join(self.path, "packages"))
        for file in glob.glob(os.path.join(PACKAGES, "*.deb")):
            shutil.copy(file, os.path.join(self.path, "packages"))

    def run(self, *commands):
        """Runs commands of a shell in /packages."""
        mount = "mount -t proc proc \"$1/proc\"; chroot \"$1\" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin " \
            "LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive bash -euc \"cd /packages 2>/dev/null || cd /; $2\""
        return run("unshare", "--mount", "sh", "-euc", mount, "sh", self.path, "\n".join(commands))

    def install(self, *names):
        self.run("apt-get -q update", f"apt-get -q install --yes --no-install-recommends {' '.join(names)}")

    def list_files(self):
        found = set()
        for parent, folders, names in os.walk(self.path):
            inside = parent[len(self.path):]
            folders[:] = [name for name in folders if not OWN.match(f"{inside}/{name}")]
            found.update(f"{inside}/{name}" for name in [*names, *folders] if not OWN.match(f"{inside}/{name}"))
        return found

    def write(self, name, text):
        with open(os.path.join(self.path, "packages", name), "w", encoding="utf-8") as file:
            file.write(text)


def read_program(document, language):
    return next(block.code for block in read_blocks(language) if block.document == document)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if "EBB_PACKAGES" not in os.environ:
            run(os.path.join(ROOT, "scripts", "package"), "deb")
        cls.folder = tempfile.mkdtemp(prefix="ebb-packages-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.bare = Bare(cls.folder)

    def test_1_lintian_finds_nothing(self):
        changes, = glob.glob(os.path.join(PACKAGES, "*.changes"))
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", changes], capture_output=True,
                              text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def check_training(self, *commands):
        losses = re.findall(r"^loss (\S+)$", self.bare.run(*commands), re.MULTILINE)
        self.assertEqual(len(losses), 10)
        self.assertLess(float(losses[-1]), float(losses[0]))
        return losses

    def check_languages(self):
        """README's programs, and the consumers of tests/consumer."""
        self.bare.write("program.c", read_program("README.md", "c"))
        self.bare.write("program.py", read_program("README.md", "python"))
        self.bare.write("program.js", read_program("docs/bindings.md", "js").replace(
            "=1.0';\n", "=1.0';\nEbb.init_process_group ('auto');\n", 1))
        self.bare.write("program.cc",
                        "#include <ebb/ebb.h>\nint main () { return ebb_check_version (1, 0, 0) ? 0 : 1; }\n")
        shutil.copytree(os.path.join(ROOT, "tests", "consumer"), os.path.join(self.bare.path, "packages", "consumer"))
        in_c = self.check_training("gcc program.c -o program $(pkg-config --cflags --libs ebb-1.0)", "./program")
        self.assertEqual(self.check_training("/usr/bin/python3 program.py"), in_c)
        self.bare.run("python3 -c 'import ebb; assert ebb.tensor ([1.5]).item () == 1.5'")
        self.bare.run("g++ -Wall -Werror program.cc -o program-cc $(pkg-config --cflags --libs ebb-1.0)",
                      "./program-cc")
        self.bare.run("cmake -S consumer -B consumer/build", "cmake --build consumer/build", "consumer/build/consumer")
        self.bare.run("valac --pkg ebb-1.0 --Xcc=-w consumer/main.vala -o program-vala", "./program-vala")
        self.assertRegex(self.bare.run("gjs -m program.js"), "^loss ")

    def check_tools(self):
        self.bare.write("text.txt", "Ebb and flow. " * 100)
        self.assertEqual(self.bare.run("ls /usr/bin/ebb-*").split(), [f"/usr/bin/{name}" for name in BINARIES])
        for name in BINARIES:
            with self.subTest(program=name):
                self.assertRegex(self.bare.run(f"{name} --version"), rf"^{name} \(Ebb\) \d+\.\d+\.\d+\n$")
                self.assertIn("EXIT STATUS", self.bare.run(f"man {name} | cat"))
                self.bare.run(f". /usr/share/bash-completion/completions/{name}; complete -p {name}",
                              f"test -s /usr/share/zsh/vendor-completions/_{name}",
                              f"test -s /usr/share/fish/vendor_completions.d/{name}.fish")
        small = "--data text.txt --context 32 --batch 2 --steps 2"
        self.bare.run(f"ebb-train-gpt {small} --checkpoint full --report r.json", "ebb-train-gpt --config r.json",
                      "ebb-train-gpt --config r.json --device sim", f"ebb-fsdp-gpt --ranks 2 {small}")
        self.bare.run("cd /usr/share/doc/ebb-doc/html && ls index.html docs/install.html searchindex.js "
                      "python/index.html c/overview.html")

    def test_2_they_install_work_and_leave_no_trace(self):
        before = self.bare.list_files()
        names = [os.path.basename(file) for file in sorted(glob.glob(os.path.join(PACKAGES, "*.deb")))
                 if "-cuda_" not in file]    # whose libraries are not in Debian's archive
        self.assertEqual(len(names), 7, names)
        self.bare.install(*(f"/packages/{name}" for name in names))
        self.check_languages()
        self.check_tools()
        self.bare.run(f"apt-get -q purge --yes --auto-remove {' '.join(name.split('_')[0] for name in names)}")
        self.assertEqual(sorted(self.bare.list_files() ^ before), [])


if __name__ == "__main__":
    reason = "set EBB_LONG to run it" if not os.environ.get("EBB_LONG") else find_missing()
    if reason:
        print(reason)
        sys.exit(77)
    unittest.main(verbosity=2)
