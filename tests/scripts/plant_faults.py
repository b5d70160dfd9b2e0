#!/usr/bin/env python3
"""Every fault of tests/faults.txt and tests/cudaemu/mutants.txt still applies: its old text occurs exactly once in its
file.

With --plant it also asks whether the tests see them: it copies the tree below the build folder, plants one fault at a
time, builds what the tests need and runs those that the fault names, then those of its folder. Faults that no test
fails at survive: a test is missing there.

    tests/scripts/plant_faults.py --plant                  # all
    tests/scripts/plant_faults.py --plant cat norm         # those with one of these in their name or file
    tests/scripts/plant_faults.py --plant --changed main   # those in files that differ from main's
"""
import argparse
import fcntl
import filecmp
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LISTS = {"tests/faults.txt": 0.9, "tests/cudaemu/mutants.txt": 1}  # how many of the faults must be seen
COPY = os.path.join(ROOT, "build", "faults")
BUILD = os.path.join(COPY, "build", "release")
TEST = re.compile(r"^add_test\(\[=\[(.+?)\]=\] (.*)\)$", re.MULTILINE)
FAILED = re.compile(r"^\s+\d+ - (\S+) \(", re.MULTILINE)


class Fault:
    def __init__(self, name, what, origin):
        self.name, self.what, self.origin = name, what, origin
        self.file, self.tests, self.old, self.new = None, None, [], []

    def complaint(self):
        old, new = "\n".join(self.old), "\n".join(self.new)
        if not self.file or not old or old == new:
            return "wants a line 'in FILE', lines '- old text' and other lines '+ new text'"
        path = os.path.join(ROOT, self.file)
        if not os.path.isfile(path):
            return f"{self.file} is missing"
        n = read(path).count(old)
        return None if n == 1 else f"its old text occurs {n} times in {self.file}, not once"

    def apply(self, text):
        return text.replace("\n".join(self.old), "\n".join(self.new))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def parse():
    """The tests of each folder, and the faults."""
    folders, faults, problems = {}, [], []
    lines = [(origin, number, line) for origin in LISTS
             for number, line in enumerate(read(os.path.join(ROOT, origin)).splitlines(), 1)]
    for origin, number, line in lines:
        key, _, value = line.partition(" ")
        if not line or key == "#":
            continue
        if key == "tests":
            folder, _, folders[folder] = value.partition(" ")
        elif key == "fault":
            faults.append(Fault(*value.split(": ", 1), origin))
        elif faults and key == "in":
            faults[-1].file = value
        elif faults and key == "by":
            faults[-1].tests = value
        elif faults and key == "-":
            faults[-1].old.append(value)
        elif faults and key == "+":
            faults[-1].new.append(value)
        else:
            problems.append(f"{origin}:{number}: '{line}' is not one of tests, fault, in, by, - and +")
    names = [fault.name for fault in faults]
    problems += [f"{name}: there are two" for name in sorted({name for name in names if names.count(name) > 1})]
    problems += [f"{fault.name}: {complaint}" for fault in faults if (complaint := fault.complaint())]
    problems += [f"{fault.name}: no tests are named for a folder of {fault.file}"
                 for fault in faults if fault.file and not tests_of_folder(folders, fault.file)]
    return folders, faults, problems


def tests_of_folder(folders, path):
    return next((folders[folder] for folder in sorted(folders, key=len, reverse=True)
                 if path.startswith(folder + "/")), None)


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def copy_tree():
    """Brings the copy to the state of the tree. Equal files are left alone, so that they are not built again."""
    listed = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    files = {path for path in listed if os.path.isfile(os.path.join(ROOT, path))}
    for path in sorted(files):
        source, copy = os.path.join(ROOT, path), os.path.join(COPY, path)
        if not os.path.isfile(copy) or not filecmp.cmp(source, copy, shallow=False):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy(source, copy)
    for parent, folders, names in os.walk(COPY):
        folders[:] = [folder for folder in folders if os.path.join(parent, folder) != os.path.join(COPY, "build")]
        for name in names:
            path = os.path.join(parent, name)
            if os.path.relpath(path, COPY) not in files:
                os.unlink(path)


def configure():
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    os.environ.update(CCACHE_BASEDIR=COPY, CCACHE_NOHASHDIR="1", EBB_LONG="1")  # tests on the emulated GPU are long
    command = ["cmake", "--preset", "release", "--log-level=WARNING", "-DEBB_WERROR=OFF", "-DEBB_WITH_CUDA=OFF"]
    subprocess.run(command + launcher, cwd=COPY, check=True, stdout=subprocess.DEVNULL)


def build(tests, jobs):
    """Builds the programs of these tests, all modules, and what scripts start; what went wrong, or None."""
    named = [(name, command) for name, command in TEST.findall(read(os.path.join(BUILD, "CTestTestfile.cmake")))
             if re.search(tests, name)]
    if not named:
        sys.exit(f"no test is named {tests}")
    programs = {os.path.relpath(path, BUILD) for _, command in named
                for path in re.findall(f'"({re.escape(BUILD)}/[^"]+)"', command)}
    targets = subprocess.run(["ninja", "-t", "targets", "all"], cwd=BUILD, check=True, capture_output=True,
                             text=True).stdout
    wanted = [r"\S*/backends/\S+\.so"]
    wanted += [r"example-\w+"] if any(name.startswith(("script-", "gi-")) for name, _ in named) else []
    wanted += [r"Ebb-1\.0\.typelib"] if any(name.startswith("gi-") for name, _ in named) else []
    programs |= set(re.findall(f"^({'|'.join(wanted)}):", targets, re.MULTILINE))
    done = subprocess.run(["ninja", "-j", jobs, *sorted(programs)], cwd=BUILD, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return None if done.returncode == 0 else done.stdout[-3000:]


def run(tests, *options):
    """The names of the tests that failed."""
    done = subprocess.run(["ctest", "-R", tests, *options], cwd=BUILD, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failed = FAILED.findall(done.stdout.partition("The following tests FAILED:")[2])
    if done.returncode != 0 and not failed:
        sys.exit(done.stdout)
    return failed


def check_without_fault(tests, jobs):
    """A test that fails anyway sees nothing."""
    complaint = build(tests, jobs)
    failed = [] if complaint else run(tests)
    if complaint or failed:
        sys.exit(complaint or f"without any fault fail: {', '.join(failed)}")


def plant(fault, rounds, jobs):
    """The test that sees the fault; None if none of @rounds does, each of which is a REGEX or None."""
    path = os.path.join(COPY, fault.file)
    text = read(path)
    write(path, fault.apply(text))
    try:
        for tests in filter(None, rounds):
            complaint = build(tests, jobs)
            if complaint:
                sys.exit(f"{fault.name} does not build:\n{complaint}")
            failed = run(tests, "--stop-on-failure")
            if failed:
                return failed[0]
    finally:
        write(path, text)
    return None


def plant_all(folders, faults, named_only, jobs):
    os.makedirs(COPY, exist_ok=True)
    lock = open(COPY + ".lock", "w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    copy_tree()
    configure()
    seen, survivors = {}, []
    for fault in faults:
        start = time.monotonic()
        test = plant(fault, (fault.tests, None if named_only else tests_of_folder(folders, fault.file)), jobs)
        if test:
            seen[fault.name] = test
        else:
            survivors.append(fault)
        result = f"seen by {test}" if test else "SURVIVES"
        print(f"{time.monotonic() - start:4.0f} s  {fault.name}: {result}", flush=True)
    if seen:
        check_without_fault("|".join(f"^{re.escape(test)}$" for test in sorted(set(seen.values()))), jobs)
    print(f"{len(faults)} faults planted, {len(seen)} seen, {len(survivors)} survive")
    for fault in survivors:
        print(f"  {fault.name} in {fault.file}: {fault.what}")
    return all(sum(fault.name in seen for fault in of_list) >= wanted * len(of_list) for origin, wanted in LISTS.items()
               for of_list in [[fault for fault in faults if fault.origin == origin]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plant", nargs="*", metavar="NAME", help="plant these faults one at a time; all by default")
    parser.add_argument("--named-only", action="store_true", help="leave out the tests of the faults' folders")
    parser.add_argument("--changed", metavar="COMMIT", help="only those in files that differ from this commit's")
    parser.add_argument("--jobs", default=str(os.cpu_count()), help="compilers at a time")
    args = parser.parse_args()
    folders, faults, problems = parse()
    if problems:
        sys.exit("\n".join(problems))
    if args.plant is None:
        print(f"{len(faults)} faults apply")
        return 0
    if args.plant:
        faults = [fault for fault in faults if any(name in fault.name or name in fault.file for name in args.plant)]
    if args.changed:
        changed = set(output_of("git", "diff", "--name-only", args.changed).split())
        faults = [fault for fault in faults if fault.file in changed]
    return 0 if plant_all(folders, faults, args.named_only, args.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
