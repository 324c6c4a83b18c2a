"""Benchmarks. Run them on a quiet machine: `make bench` (QUICK=1 for a short look, WHAT= for one part).

measure.py     a measurement, interleaved rounds, medians
report.py      Markdown tables and the JSON file
machine.py     what the figures were measured on
progress.py    how far the run has come, on stderr
sqlite/        the embedded broker against a bare loop of its own SQL
durable/       server CPU of steps beside plain jobs; what sleeping jobs cost
growth/        many queues, tasks, groups and sleeping workers, compared with one of each
worker/        the API and a real worker on it, against a bare loop of the same SQL
service/       the HTTP and gRPC servers under load, beside servers that do nothing
peers/         dray beside other queues, each in an environment of its own
"""
