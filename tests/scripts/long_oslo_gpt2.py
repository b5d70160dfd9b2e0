#!/usr/bin/env python3
"""oslo_gpt2 at its default sizes, GPT-2 small on four ranks, as the documents show it. Takes minutes."""
import os
import subprocess
import sys

SOURCE = os.environ.get("EBB_SOURCE_DIR", os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
PROGRAM = os.path.join(os.environ.get("EBB_BUILD_DIR", os.path.join(SOURCE, "build", "release")), "examples",
                       "oslo_gpt2")

if __name__ == "__main__":
    if not os.environ.get("EBB_LONG"):
        print("skipped: EBB_LONG is not set")
        sys.exit(77)
    environment = {name: value for name, value in os.environ.items() if name != "EBB_SIM_MEMORY"}
    done = subprocess.run([PROGRAM], capture_output=True, text=True, check=False, env=environment)
    print(done.stdout + done.stderr)
    if done.returncode != 0 or "The losses of all rows are equal, bit for bit." not in done.stdout:
        sys.exit(f"oslo_gpt2 ended with {done.returncode}")
    head = "GPT-2 of 12 layers, width 768, 12 heads, vocabulary 50257, on 4 tensor ranks (thread)"
    if not done.stdout.startswith(head):
        sys.exit(f"the table does not begin with: {head}")
