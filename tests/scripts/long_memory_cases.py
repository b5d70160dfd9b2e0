#!/usr/bin/env python3
"""The tables of docs/memory.md, and README's of what fits, are those that docs/figures/memory_cases.py prints."""
import os
import subprocess
import sys
import tempfile

ROOT = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def main():
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="ebb-cases-") as folder:
        done = subprocess.run([sys.executable, os.path.join(ROOT, "docs", "figures", "memory_cases.py"), "--check"],
                              env={**os.environ, "EBB_COST_FILE": os.path.join(folder, "costs")}, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
