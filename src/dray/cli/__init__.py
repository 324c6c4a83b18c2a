"""The command `dray`. Each command or group is one module, loaded when it is called.

target                  options that commands share: app, broker, namespace, `--json`, settings
output                  tables, text and JSON; colours and bars only on a terminal
errors                  error messages as text and JSON; suggestions for mistyped names
main                    the root command, its list of commands, exit codes
open_app                from options to the app or the broker
inspect_app             the app's settings and tasks, read in a child process
formatting              jobs, queues, workers and statistics as table rows and JSON
job_selection           changes to many jobs: filter, dry run, confirmation, progress
worker server demo      `dray worker` and `dray scheduler`, `dray server`, `dray demo`
init dev                `dray init` writes a starter app; `dray dev` runs all of it
enqueue jobs dead       `dray enqueue`, `dray jobs` and `dray why`, `dray dead`
durable replay          `dray send`, durable parts of `dray jobs`; `dray replay`
flow_tree flows         a flow drawn as a tree; `dray flows`
queues workers          one group of commands each
history                 `dray history`: search, one job, errors, statistics
top_view                the screens of `dray top` as lines of text
top                     `dray top`: reads the broker, draws, answers keys
schedules keys          one group of commands each
doctor_checks           checks of any broker
doctor_sqlite           checks of a database file
doctor_redis            checks of servers
doctor                  `dray doctor`: runs the checks
bench_app bench         the task that `dray bench` measures with; `dray bench`
"""

from __future__ import annotations

from dray.cli.main import main

__all__ = ["main"]
