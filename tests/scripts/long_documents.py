#!/usr/bin/env python3
"""The commands in README.md and docs/*.md that take minutes run as they stand there, at their full size."""
import os
import sys
import unittest

import documents_commands


class Commands(unittest.TestCase):
    def test_commands_run(self):
        documents_commands.run_all(self, True)


if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    unittest.main(verbosity=2)
