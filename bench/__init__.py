"""Benchmarks. Run them on a quiet machine: `python -m bench.sqlite` (QUICK=1 for a short look).

measure.py     a measurement, interleaved rounds, medians
report.py      Markdown tables and the JSON file
machine.py     what the figures were measured on
progress.py    how far the run has come, on stderr
sqlite/        the embedded broker against a bare loop of its own SQL
"""
