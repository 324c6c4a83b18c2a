"""Writes the schedules that an app's code declares, and ends: `python -m dray.worker.duties.declare`.

For a worker without executors: its supervisor runs no user code, so another process must import the app.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import msgspec

from dray.errors import BrokerAway, DrayError
from dray.loading import load_app
from dray.retry_pauses import RetryPauses
from dray.worker import logs
from dray.worker.config import DeclareConfig
from dray.worker.process import die_with
from dray.worker.retrying_broker import FIRST_PAUSE, LONGEST_PAUSE

log = logging.getLogger("dray.worker")


def declare(config: DeclareConfig) -> int:
    """Import the app and write its schedules, however long the broker is away; the exit code."""
    try:
        app = load_app(config.app, Path(config.folder))
        app.use(msgspec.structs.replace(app.loaded, settings=config.settings))
        pauses = RetryPauses(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                app.reconcile_schedules(started=config.started)
                return 0
            except BrokerAway:
                time.sleep(pauses.next())
    except DrayError as error:
        log.error("%s", error)
        return 1


def main() -> int:
    config = DeclareConfig.from_environ()
    die_with(config.parent)
    logs.set_up(config.settings)
    return declare(config)


if __name__ == "__main__":
    sys.exit(main())
