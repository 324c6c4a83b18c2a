"""`sqlite:///path`: the embedded broker. Durable, many processes on one machine, nothing to install.

broker.py        the verbs
put.py take.py settle.py edit.py sweep.py read.py wait.py    one theme each
step.py          one write transaction: the moves of the reference, on rows
audit.py         the invariants
database.py      the file: transactions, contention, and all that can happen to a file
bell.py          wake-up calls between processes
migrations/      the layout, by version
sql/             every statement, by name
"""

from dray.broker.sqlite.broker import SqliteBroker

__all__ = ["SqliteBroker"]
