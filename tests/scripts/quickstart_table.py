"""scripts/quickstart-table shows every figure and refuses losses that differ."""
import copy
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.environ.get("EBB_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "scripts", "quickstart-table")

BASE = {"losses": [5.25, 0.1 + 0.2], "final_loss": 0.1 + 0.2, "tokens_per_second": 1234.5, "peak_bytes": 7 * 2**20,
        "activation_bytes_peak": 3 * 2**20, "parameter_bytes": 2**20, "gradient_bytes": 2**20,
        "optimizer_bytes": 2**21, "workspace_bytes": 0, "recomputed_blocks": 0, "store": {"bytes_peak": 0},
        "config": {"checkpoint": "none", "store": "keep", "device": "cpu"}}


def table(*reports):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, report in enumerate(reports):
            paths.append(os.path.join(folder, f"{number}.json"))
            with open(paths[-1], "w", encoding="utf-8") as file:
                json.dump(report, file)
        return subprocess.run([sys.executable, TABLE, *paths], capture_output=True, text=True)


full = copy.deepcopy(BASE)
full["config"].update(checkpoint="full", store="disk")
full["store"]["bytes_peak"] = 11 * 2**19
full["recomputed_blocks"] = 8
equal = table(BASE, full)
assert equal.returncode == 0, equal.stderr
for wanted in ("0.30000000000000004", "full", "disk", "7.0", "3.0", "5.5", "equal to the last digit"):
    assert wanted in equal.stdout, (wanted, equal.stdout)

# Equal at the end is not enough.
full["losses"][0] = 5.250000000000001
different = table(BASE, full)
assert different.returncode == 1 and "differ" in different.stderr, different

assert subprocess.run([sys.executable, TABLE, "/no/such/report"], capture_output=True).returncode == 1
assert subprocess.run([sys.executable, TABLE], capture_output=True).returncode == 1
