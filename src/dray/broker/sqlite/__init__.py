"""`sqlite:///path`: the embedded broker. Durable, many processes on one machine, nothing to install.

options       the URL, read into options
path          the file's path and file system
errors        errors of SQLite and the system, as errors of dray
connection    opens and configures a connection
layout        the layout of the file: its mark, migrations, .sql files
database      transactions on the file: contention, forks, lost files
statements    the statements of sql/, loaded
rows          rows of tables as objects
lanes         where ready jobs stand, and what limits hold back
transaction   one write transaction: the moves of a job, on rows
durable       the log, the mailbox and the suspension of durable jobs
outbox        delivers messages between jobs: ends, cancels, revivals
put           accepts jobs
take          hands out jobs
settle        applies outcomes of runs, ends sessions
edit          changes jobs and queues by hand
read          reads jobs, queues, documents, the feed
fifo          wakes waiting processes
wait          finds news for a waiter
sweep         frees lapsed sessions, buries expired jobs, prunes old records
repair        repairs damage to the file
audit         checks the invariants
broker        the verbs
"""

from dray.broker.sqlite.broker import SqliteBroker

__all__ = ["SqliteBroker"]
