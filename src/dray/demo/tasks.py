"""The tasks of the tour: what the background work of a small shop might be, and how it goes wrong.

This is a dray app like any other: `dray worker -A dray.demo.tasks:app` serves it.
"""

from __future__ import annotations

import asyncio
import os
import time

from dray.app import App
from dray.context import Context, Reject

app = App("demo")


@app.task
def thumbnail(picture: int) -> str:
    """Quick, and plain: it runs in a thread."""
    time.sleep(0.03)
    return f"picture-{picture}.webp"


@app.task(priority="high")
async def order(number: int) -> str:
    """Urgent: whatever waits, this goes first."""
    await asyncio.sleep(0.03)
    return f"order {number} is packed"


@app.task(retries=4, backoff="fixed:400ms")
async def email(ctx: Context, to: str) -> str:
    """Fails twice before it gets through."""
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
    """Enqueued again and again under one key, and done once."""
    await asyncio.sleep(0.02)
    return f"welcome, customer {customer}"


@app.task
async def newsletter(issue: int) -> str:
    """Somebody thinks better of it before it starts."""
    return f"issue {issue} is out"


@app.task
def report(ctx: Context, month: str, days: int) -> str:
    """Says how far it is, and stops when it is asked to."""
    for day in range(days):
        ctx.check()
        ctx.progress(day, days, note=f"{month} {day + 1}")
        time.sleep(0.1)
    return f"{month}: {days} days"


@app.task
async def price(item: int) -> int:
    """Its result is waited for."""
    await asyncio.sleep(0.02)
    return item * item


@app.task(retries=5)
def payment(number: int) -> None:
    """Knows that no retry can help."""
    raise Reject("the card has expired")


@app.task(retries=2, backoff="fixed:300ms")
def fax(number: str) -> None:
    """Never gets through."""
    raise TimeoutError("nobody answers")


@app.task
def catalogue(ctx: Context, pages: int) -> str:
    """Takes the whole process down the first time, as a faulty C library would."""
    if ctx.run == 1:
        os._exit(139)
    return f"{pages} pages"


@app.task
def video(ctx: Context, clip: int) -> str:
    """Long enough to be hit by an accident; after one, most of it is done already."""
    end = time.monotonic() + (3.0 if ctx.run == 1 else 0.5)
    while (left := end - time.monotonic()) > 0:
        ctx.check()
        time.sleep(min(left, 0.1))
    return f"clip-{clip}.mp4, run {ctx.run}"
