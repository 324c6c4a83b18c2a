"""The command `dray`. One module per command or group; each is loaded when it is called.

main.py        the root: which commands there are, and how errors end
target.py      which app, broker and namespace a command works on
output.py      tables, text and JSON; colours and bars only on a terminal
shapes.py      how jobs, queues and workers look in a table and in JSON
selection.py   changes to many jobs: filter, dry run, confirmation, progress
probe.py       asks an app for its settings in a process of its own
"""

from __future__ import annotations

from dray.cli.main import main

__all__ = ["main"]
