"""Workers beside an example, as you would run them in other terminals: `dray worker -A quickstart:app`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def worker_for(example: str, *options: str, **environ: str) -> Iterator[None]:
    """Serve the `app` of an example's file while inside."""
    file = Path(example).resolve()
    command = [sys.executable, "-m", "dray", "worker", "-A", f"{file.stem}:app", "-p", "1", *options]
    environment = {**os.environ, "PYTHONPATH": str(file.parent), "DRAY_LOG_LEVEL": "critical", **environ}
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait()
