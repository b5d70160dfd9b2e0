#!/usr/bin/env python3
"""Budgets of the process are kept and used, by the program and from Python: four models."""
import os
import statistics
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from budget_models import BUILD, MIB, Measured, unused  # noqa: E402

# Of each the share of what lies between its least and its need that the budget has.
MODELS = [
    ({"layers": 3, "width": 128, "heads": 4, "context": 256, "batch": 8, "threads": 1, "held": 8 * MIB}, 0.6),
    ({"layers": 6, "width": 64, "heads": 2, "context": 160, "batch": 8, "threads": 2, "held": 1 * MIB}, 0.4),
    ({"layers": 4, "width": 32, "heads": 2, "context": 288, "batch": 12, "threads": 2, "held": 16 * MIB}, 0.3),
    ({"layers": 6, "width": 64, "heads": 2, "context": 192, "batch": 12, "threads": 1, "held": 2 * MIB}, 0.9),
]
MOST_UNUSED = 0.05  # the median, beside the huge page that is held back
PAGE = 2 * MIB


class Budgets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ebb-budgets-")
        cls.addClassCleanup(folder.cleanup)
        text = os.path.join(folder.name, "text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.writelines(f"Line {n} of {n * n}: the quick brown fox.\n" for n in range(1000))
        cls.measured = [(Measured(model, text, folder.name, n_steps=4), share) for model, share in MODELS]

    def check(self, reports):
        """reports: each with the budget that it had."""
        for report, budget in reports:
            self.assertLessEqual(report["rss_peak_bytes"], budget)
        self.assertLessEqual(statistics.median(unused(report, budget) - PAGE / budget for report, budget in reports),
                             MOST_UNUSED)

    def test_the_program_uses_its_budget(self):
        reports = []
        for measured, share in self.measured:
            need, least = measured.run("--checkpoint", "none")["rss_peak_bytes"], measured.find_least()
            budget = int(least + share * (need - least))
            reports.append((measured.run("--memory", budget), budget))
            self.assertEqual(reports[-1][0]["corrections"], [])
        self.check(reports)

    @unittest.skipUnless(os.path.exists(os.path.join(BUILD, "Ebb-1.0.typelib")), "there are no bindings")
    def test_a_loop_of_ones_own_uses_its_budget(self):
        reports = []
        for measured, share in self.measured:
            budget = int(measured.run_python(0)["rss_peak_bytes"] - (1 - share) * 8 * MIB)
            reports.append((measured.run_python(budget), budget))
        self.check(reports)


if __name__ == "__main__":
    unittest.main()
