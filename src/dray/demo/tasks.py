"""The app of the demo: background work of a small shop. `dray worker -A dray.demo.tasks:app` serves it."""

from __future__ import annotations

import asyncio
import os
import time

from dray.app import App
from dray.context import Context, Reject

app = App("demo")


@app.task
def thumbnail(picture: int) -> str:
    """A quick plain function: runs in a thread."""
    time.sleep(0.03)
    return f"picture-{picture}.webp"


@app.task(priority="high")
async def order(number: int) -> str:
    """Urgent: passes all jobs that wait."""
    await asyncio.sleep(0.03)
    return f"order {number} is packed"


@app.task(retries=4, backoff="fixed:400ms")
async def email(ctx: Context, to: str) -> str:
    """Fails twice, then succeeds."""
    await asyncio.sleep(0.02)
    if ctx.attempt <= 2:
        raise ConnectionError("the mail server hung up")
    return f"sent to {to}"


@app.task
async def reminder(cart: int) -> str:
    """Enqueued with a delay."""
    return f"cart {cart} is still full"


@app.task(once="1h")
async def welcome(customer: int) -> str:
    """Enqueued several times with one key, and done once."""
    await asyncio.sleep(0.02)
    return f"welcome, customer {customer}"


@app.task
async def newsletter(issue: int) -> str:
    """Cancelled before it starts."""
    return f"issue {issue} is out"


@app.task
def report(ctx: Context, days: int) -> str:
    """Reports progress, and stops when it is cancelled."""
    for day in range(days):
        ctx.check()
        ctx.progress(day + 1, days, note=f"day {day + 1}")
        time.sleep(0.1)
    return f"{days} days"


@app.task
async def price(item: int) -> int:
    """The caller waits for its result."""
    await asyncio.sleep(0.02)
    return item * item


@app.task(retries=5)
def payment(number: int) -> None:
    """Dies at once: no retry can help."""
    raise Reject("the card has expired")


@app.task(retries=2, backoff="fixed:300ms")
def fax(number: str) -> None:
    """Fails until its retries are used up."""
    raise TimeoutError("nobody answers")


@app.task
def catalogue(ctx: Context, pages: int) -> str:
    """Ends its whole process in the first run, as a faulty C library would."""
    if ctx.run == 1:
        os._exit(139)
    return f"{pages} pages"


@app.task
def video(ctx: Context, clip: int) -> str:
    """Long enough to be killed in its first run; short after that."""
    end = time.monotonic() + (3.0 if ctx.run == 1 else 0.5)
    while (left := end - time.monotonic()) > 0:
        ctx.check()
        time.sleep(min(left, 0.1))
    return f"clip-{clip}.mp4, run {ctx.run}"
