"""`dray send`, `dray jobs continue`, `dray jobs rerun` and `dray replay`, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Shell

PROJECT = """
from dray import App, Context

app = App("shop")


def charge(id: str) -> str:
    return f"payment-{id}"


@app.task
async def order(ctx: Context, id: str) -> str:
    paid = await ctx.step(charge, id)
    return f"{paid} {await ctx.event('approved')}"
"""


@pytest.fixture
def durable(shell: Shell) -> Shell:
    write(shell, PROJECT)
    return shell


def write(shell: Shell, text: str) -> None:
    (Path(shell.folder) / "durable_shop.py").write_text(text)


def in_project(shell: Shell, *args: str, code: int | None = 0) -> str:
    ended = shell.spawn("-A", "durable_shop:app", *args, code=code)
    return ended.out + ended.err


def waiting(shell: Shell, id: str) -> None:
    in_project(shell, "enqueue", "order", id, "--id", id)
    in_project(shell, "worker", "--burst")


def test_an_event_from_the_shell_wakes_the_job(durable: Shell) -> None:
    waiting(durable, "a1")
    assert "waits for event 'approved' since" in in_project(durable, "why", "a1")
    assert "sent approved to a1" in in_project(durable, "send", "a1", "approved", "yes", "--id", "m1")
    assert "before" in in_project(durable, "send", "a1", "approved", "yes", "--id", "m1")
    in_project(durable, "worker", "--burst")
    shown = in_project(durable, "jobs", "show", "a1")
    assert "payment-a1 yes" in shown
    assert "charge('a1')  done" in shown
    assert "is succeeded" in in_project(durable, "send", "a1", "approved", code=1)
    assert "nothing" in in_project(durable, "send", "nothing", "approved", code=1)


def test_a_parked_job_is_continued_and_run_again_from_a_step(durable: Shell) -> None:
    waiting(durable, "a2")
    assert "is not parked" in in_project(durable, "jobs", "continue", "a2", code=1)
    assert "1 remembered step" in in_project(durable, "replay", "a2", "--check")
    write(durable, PROJECT.replace("charge, id)", "charge, id + '!')"))
    assert "the arguments of step 'charge' were" in in_project(durable, "replay", "a2", "--check", code=1)
    in_project(durable, "send", "a2", "approved")
    in_project(durable, "worker", "--burst")
    assert "it is parked, because its code has changed" in in_project(durable, "why", "a2")
    assert "a2 goes on" in in_project(durable, "jobs", "continue", "a2")
    in_project(durable, "worker", "--burst")
    assert "payment-a2 None" in in_project(durable, "jobs", "show", "a2")
    new = in_project(durable, "jobs", "rerun", "a2", "--from", "event(approved)").strip()
    in_project(durable, "worker", "--burst")
    assert "rerun of" in in_project(durable, "jobs", "show", new)
    assert "one of" in in_project(durable, "jobs", "rerun", "a2", "--from", "gone", code=1)


def test_a_replay_shows_the_error_and_refuses_new_steps(durable: Shell) -> None:
    waiting(durable, "a3")
    body = "return f\"{paid} {await ctx.event('approved')}\""
    write(durable, PROJECT.replace(body, "raise ValueError(paid)"))
    said = in_project(durable, "replay", "a3", code=None)
    assert "ValueError: payment-a3" in said
    assert "1 remembered step" in said
    assert "the next step is new: charge" in in_project(durable, "replay", "a3", "--from", "charge")
