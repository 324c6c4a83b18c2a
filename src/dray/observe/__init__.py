"""Metrics in the text format of Prometheus.

table     every metric: its kind, its labels and its meaning
snapshot  the data that one scrape reads from the broker
samples   turns a snapshot into samples
metrics   the text of the metrics, for servers, workers and programs
"""

from dray.observe.metrics import CONTENT_TYPE, ametrics, metrics

__all__ = ["CONTENT_TYPE", "ametrics", "metrics"]
