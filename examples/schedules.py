"""Schedules: in code, at run time, and what is known of them.

python examples/schedules.py
"""

from __future__ import annotations

import time

from beside import worker_for

from dray import App, Context, State

app = App("schedules")


@app.every("1s", name="pulse", overlap="skip")
@app.cron("0 3 * * MON-FRI", tz="Europe/London")
@app.task
def report(ctx: Context, what: str = "all") -> str:
    return f"{what}, for the tick {ctx.headers['tick']}"


def main() -> None:
    app.schedules.create("often", report, cron="*/2 * * * * *", args=["some"], tags=["demo"])
    with worker_for(__file__):
        while not app.jobs.find(tag="schedule:often", state=State.SUCCEEDED) or pulses() < 2:
            time.sleep(0.1)
    for info in app.schedules.list():
        print(f"{info.name}: {info.description} ({info.origin})")
    newest = app.schedules.get("often")
    assert newest.last_job is not None
    print("its newest job:", app.job(newest.last_job).info().headers["schedule"])
    print("at most one job per tick:", len(ticks()) == len(set(ticks())))
    app.schedules.delete("often")


def pulses() -> int:
    return sum(info.run_count for info in app.schedules.list() if info.name == "pulse")


def ticks() -> list[str]:
    return [info.headers["tick"] for info in app.jobs.find(tag="schedule:pulse", limit=None)]


if __name__ == "__main__":
    main()
