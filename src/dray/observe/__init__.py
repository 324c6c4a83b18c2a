"""What is to be seen of a running system from outside: metrics in the text format of Prometheus.

gathering.py   what one scrape reads from the broker
table.py       every metric: its kind, labels and what it means
families.py    from what was read to samples
metrics.py     the text of it, for servers, workers and programs
"""

from dray.observe.metrics import CONTENT_TYPE, ametrics, metrics

__all__ = ["CONTENT_TYPE", "ametrics", "metrics"]
