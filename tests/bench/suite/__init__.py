"""The benchmark suite behind scripts/bench: Ebb beside PyTorch in one run (see tests/bench/README.md).

process.py   how programs are run, timed and their memory read
machine.py   what it ran on
rows.py      the trainings of the table
parts.py     the small things of it: one op, start-up, loading a file
sweeps.py    cost against context length and against layers
targets.py   what must be reached
report.py    the tables
main.py      the command

Needs only the standard library. All figures end in one JSON object, from which docs/figures/benchmarks.py draws.
"""
