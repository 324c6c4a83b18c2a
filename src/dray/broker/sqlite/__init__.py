"""`sqlite:///path`: the embedded broker. Durable, many processes on one machine, nothing to install.

broker.py        the verbs
put.py take.py settle.py edit.py sweep.py read.py wait.py    one theme each
step.py          one write transaction: the moves of the reference, on rows
audit.py         the invariants
database.py      the file: transactions, contention, fork, and a file that goes away
connection.py    one connection to it: how it is opened and set up
layout.py        what is in the file: dray's mark, migrations, and the reading of .sql files
place.py         where the file lies: path, folders, file system
faults.py        what SQLite and the system report, in dray's words
statements.py    the statements of sql/, loaded
bell.py          wake-up calls between processes
migrations/      the layout, by version
sql/             every statement, by name
"""

from dray.broker.sqlite.broker import SqliteBroker

__all__ = ["SqliteBroker"]
