#!/usr/bin/env python3
"""scripts/test-times adds up what CTest measured, and names the tests that took more than a third of their limits."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
TESTS = """
add_test (near sh -c "sleep 0.6")
set_tests_properties (near PROPERTIES TIMEOUT 1.5)
add_test (far sh -c "sleep 0.1; echo Test time =   100.00 sec")
set_tests_properties (far PROPERTIES TIMEOUT 60)
add_test (unlimited true)
"""


def run(*arguments):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "test-times"), *arguments],
                          capture_output=True, text=True, check=False)


class Times(unittest.TestCase):
    def test_the_sum_and_the_slow_ones(self):
        with tempfile.TemporaryDirectory() as build:
            with open(os.path.join(build, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
                file.write(TESTS)
            done = run(build)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("LastTest.log: No such file or directory; run scripts/test first", done.stderr)
            subprocess.run(["ctest", "--test-dir", build, "--quiet"], check=True)
            done = run(build)
            self.assertEqual((done.returncode, done.stderr), (1, ""))
            total, slow, *others = done.stdout.splitlines()
            seconds = float(re.fullmatch(r"3 tests took (\d+\.\d) s, one after the other", total).group(1))
            self.assertTrue(0.7 <= seconds < 60, total)
            self.assertRegex(slow, r"^near took \d\.\d s, more than a third of its limit of 1.5 s$")
            self.assertEqual(others, [])
            subprocess.run(["ctest", "--test-dir", build, "--quiet", "-R", "far"], check=True)
            done = run(build)
            self.assertEqual((done.returncode, done.stdout.count("\n")), (0, 1), done.stdout)

    def test_what_it_does_not_take(self):
        self.assertEqual(run("one", "two").returncode, 2)
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
