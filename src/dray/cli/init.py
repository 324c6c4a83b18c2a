"""`dray init`: a starter app, its test and its settings in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from dray.cli.output import say

APP: Final = '''\
"""The app: its tasks and schedules."""

import asyncio
import random

from dray import App, Context

app = App("{name}")


@app.task(queue="email", retries=3)
async def send_email(to: str, subject: str = "Welcome") -> str:
    """A task is a function. An exception makes the job run again, after a pause."""
    await asyncio.sleep(random.uniform(0.05, 0.3))
    if random.random() < 0.2:
        raise ConnectionError(f"the mail server did not take the message for {{to}}")
    return f"sent {{subject!r}} to {{to}}"


@app.task
async def resize(ctx: Context, image: str, width: int = 800) -> str:
    """A parameter annotated `Context` is filled in: for progress, cancellation and logs."""
    for done in range(10):
        ctx.progress(done, 10, f"resizing {{image}}")
        await asyncio.sleep(0.2)
    return f"{{image}} at {{width}} pixels"


@app.task(queue="reports", retries=0)
def report(day: int) -> int:
    """It fails on every fifth day: see it on the page Errors."""
    return 100 // (day % 5)


@app.every("5s")
@app.task
async def shop_opens() -> None:
    """Enqueues some work, so that there is something to see. Delete it when you have your own."""
    for number in range(3):
        await send_email.aenqueue(f"customer{{number}}@example.org")
    await resize.aenqueue(f"photo{{random.randrange(100)}}.jpg")
    await report.aenqueue(random.randrange(1, 30))
'''
TEST: Final = '''\
"""Tests run jobs in this process: no broker, no worker, no waiting."""

from app import app, report


def test_a_report_is_counted() -> None:
    with app.testing() as harness:
        job = report.enqueue(4)
        harness.drain()
        assert job.get() == 25
'''
SETTINGS: Final = """\
# Settings of dray: `dray doctor --settings` shows them all. DRAY_BROKER_URL=redis://... moves to a server.
app = "app:app"
"""
FILES: Final = {"app.py": APP, "test_app.py": TEST, "dray.toml": SETTINGS}


@click.command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
def init_command(folder: Path) -> None:
    """Write a starter app, its test and its settings into a folder; by default the current one.

    Files that exist are never overwritten: then nothing is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    taken = [name for name in FILES if (folder / name).exists()]
    if taken:
        raise click.ClickException(f"{folder / taken[0]} exists already: nothing was written")
    name = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in folder.resolve().name)
    for file, text in FILES.items():
        (folder / file).write_text(text.format(name=name or "shop") if file == "app.py" else text, "utf-8")
    say(f"wrote {', '.join(FILES)}")
    go = "" if folder == Path() else f"cd {folder} && "
    say(f"next: `{go}dray dev` runs it with a dashboard; `{go}pytest` runs its test")
