"""As many tasks as asked for. Each run leaves a byte in a file: so a drain is seen from outside."""

from __future__ import annotations

import os

from dray import App

app = App("growth", broker=os.environ.get("BENCH_BROKER", "memory://"))
_marks = os.open(os.environ.get("BENCH_MARKS", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


async def mark(number: int) -> int:
    os.write(_marks, b".")
    return number


TASKS = [app.task(name=f"mark{n}")(mark) for n in range(int(os.environ.get("BENCH_TASKS", "1")))]
