"""A task that writes down when it started, next to when it should have."""

from __future__ import annotations

import os
import struct
import time

from dray import App

PAIR = struct.Struct("<dd")
"""When it should have started, when it did: seconds since the epoch."""

app = App("lateness", namespace="dray", broker=os.environ.get("BENCH_BROKER", "memory://"))
_marks = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task(result_ttl=0)
async def mark(wanted: float) -> None:
    os.write(_marks, PAIR.pack(wanted, time.time()))
