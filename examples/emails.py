"""Failures: what is tried again, what is not, and what remains of what failed for good.

python examples/emails.py
"""

from __future__ import annotations

from beside import worker_for

from dray import App, Context, JobFailed, Reject, Retry

app = App("emails")


@app.task(retries=3, backoff="fixed:200ms")
async def send(ctx: Context, to: str) -> str:
    if "@" not in to:
        raise Reject(f"{to!r} is no address")  # no retry can help: dead at once
    if to.startswith("busy") and ctx.attempt == 1:
        raise Retry("the server asked for a moment", delay=0.5)
    if to.startswith("flaky") and ctx.attempt <= 2:
        raise ConnectionError("the server hung up")  # any error is tried again
    if to.startswith("never"):
        raise ConnectionError("nobody is there")
    return f"delivered to {to} by attempt {ctx.attempt}"


def main() -> None:
    addresses = ["plain@x.org", "busy@x.org", "flaky@x.org", "never@x.org", "nonsense"]
    jobs = [send.enqueue(address) for address in addresses]
    with worker_for(__file__):
        for job in jobs:
            try:
                print(job.get(timeout=30))
            except JobFailed as failure:
                print(f"{failure.type}: {failure.message}")

    for info in app.dead.list():
        if info.id in {job.id for job in jobs}:
            print("dead:", info.args, "after", info.attempt, "attempts")
    app.dead.purge([job.id for job in jobs if job.status() == "dead"])


if __name__ == "__main__":
    main()
