#!/usr/bin/env python3
"""scripts/test-times adds up what CTest measured, and names the tests that took more than a third of their limits."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
TESTS = """
add_test (near true)
set_tests_properties (near PROPERTIES TIMEOUT 1.5)
add_test (far true)
set_tests_properties (far PROPERTIES TIMEOUT 60)
add_test (unlimited true)
"""
# What CTest writes, in which a test's own output may look like a time.
LOG = """1/1 Testing: {0}
1/1 Test: {0}
Output:
----------------------------------------------------------
Test time =   100.00 sec
<end of output>
Test time =   {1:.2f} sec
----------------------------------------------------------
Test Passed.
"{0}" end time: Nov 27 12:00 UTC
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
            self.assertRegex(run(build).stdout, r"^3 tests took \d+\.\d s, one after the other\n")
            log = os.path.join(build, "Testing", "Temporary", "LastTest.log")
            with open(log, "w", encoding="utf-8") as file:
                file.write(LOG.format("near", 0.61) + LOG.format("far", 19.3) + LOG.format("unlimited", 0))
            done = run(build)
            self.assertEqual((done.returncode, done.stderr), (1, ""))
            self.assertEqual(done.stdout.splitlines(), ["3 tests took 19.9 s, one after the other",
                                                        "near took 0.6 s, more than a third of its limit of 1.5 s"])
            with open(log, "w", encoding="utf-8") as file:
                file.write(LOG.format("near", 0.49) + LOG.format("far", 19.9))
            self.assertEqual((run(build).returncode, run(build).stdout),
                             (0, "2 tests took 20.4 s, one after the other\n"))

    def test_what_it_does_not_take(self):
        self.assertEqual(run("one", "two").returncode, 2)
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
