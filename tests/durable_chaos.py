"""Real workers, a scheduler and a server under SIGKILL while durable jobs of all shapes run.

Every effect of a step is a line in a ledger, a file that no part of dray knows: job, step, a token. The value
of the step is the token, so that the log and the result of a job say which of its effects counts.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from chaos import children_of, executors_of

from dray import App, State

LEASE = 4.0
SHAPES = ("line", "plain", "alone", "wide", "letters", "parent", "saga", "doomed")
SLOTS = 8
"""Jobs that one executor runs at a time: a kill interrupts so many steps at most, and steps side by side."""

APP = """
import asyncio, os, time, uuid
from dray import App, Context

app = App("durable", broker=os.environ["CHAOS_BROKER"], lease="{lease}s", max_crashes=10_000,
          backoff="fixed:50ms", sweep_interval="200ms", timeout="60s")
ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(job: str, step: str) -> str:
    token = uuid.uuid4().hex
    os.write(ledger, f"{{job}} {{step}} {{token}}\\n".encode())
    return token


def effect(job: str, step: str) -> str:
    token = note(job, step)
    time.sleep(0.02)
    return token


async def aeffect(job: str, step: str) -> str:
    token = note(job, step)
    await asyncio.sleep(0.02)
    return token


def undo(token: str) -> None:
    os.write(ledger, f"- undo {{token}}\\n".encode())


@app.task
async def line(ctx: Context) -> list[str]:
    id, got = ctx.job.id, []
    for name in ("a", "b", "c"):
        got.append(await ctx.step(aeffect, id, name, name=name))
        await ctx.sleep("1.1s")
    return got


@app.task
def plain(ctx: Context) -> list[str]:
    id, got, steps = ctx.job.id, [], ctx.blocking
    for name in ("a", "b"):
        got.append(steps.step(effect, id, name, name=name))
        steps.sleep("1.1s")
    return got


@app.task(isolate="process")
def alone(ctx: Context) -> list[str]:
    got = [ctx.blocking.step(effect, ctx.job.id, "a", name="a")]
    ctx.blocking.sleep("1.1s")
    return [*got, ctx.blocking.step(effect, ctx.job.id, "b", name="b")]


@app.task
async def wide(ctx: Context) -> list[str]:
    id = ctx.job.id
    got = await asyncio.gather(*(ctx.step(aeffect, id, f"p[{{n}}]", name="p", key=n) for n in range(4)))
    await ctx.sleep("1.1s")
    return got


@app.task
async def letters(ctx: Context) -> list[str]:
    got = [await ctx.event("go"), await ctx.event("go")]
    return [*got, await ctx.step(aeffect, ctx.job.id, "a", name="a")]


@app.task
async def child(ctx: Context) -> str:
    return await ctx.step(aeffect, ctx.job.id, "a", name="a")


@app.task
async def parent(ctx: Context) -> list[str]:
    first = await ctx.call(child.call(), key="1")
    return [first, await ctx.call(child.call(), key="2")]


@app.task
async def saga(ctx: Context) -> list[str]:
    got = await ctx.step(aeffect, ctx.job.id, "a", name="a", undo=undo)
    await ctx.sleep("1.1s")
    return [got]


@app.task(retries=0)
async def doomed(ctx: Context) -> None:
    await ctx.step(aeffect, ctx.job.id, "a", name="a", undo=undo, undo_retries=100)
    await ctx.step(aeffect, ctx.job.id, "b", name="b", undo=undo, undo_retries=100)
    raise ValueError("as planned")
"""


@dataclass
class Report:
    ends: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class DurableChaos:
    def __init__(self, folder: Path, url: str, jobs: int, seed: int, killing: float) -> None:
        self.folder, self.jobs, self.killing = folder, jobs, killing
        self.dice, self.report = random.Random(seed), Report()
        self.ledger = folder / "ledger"
        self.environment = {
            **os.environ,
            "CHAOS_BROKER": url,
            "CHAOS_LEDGER": str(self.ledger),
            "PYTHONPATH": str(folder),
        }
        self.port = 0
        self.staff: dict[str, subprocess.Popen[bytes]] = {}
        self.app = App("durable", broker=url)
        self.ids: dict[str, str] = {}

    def run(self, patience: float) -> Report:
        (self.folder / "durable_app.py").write_text(APP.format(lease=LEASE))
        begin = time.monotonic()
        try:
            self._staff()
            for n in range(self.jobs):
                shape = SHAPES[n % len(SHAPES)]
                self.ids[f"job-{n}"] = shape
                self.app.using(id=f"job-{n}").enqueue(shape)
            self._kill_until(begin + self.killing)
            self._finish(begin + self.killing + patience)
            self._reckon()
        finally:
            self._stop()
            self.app.close()
        return self.report

    # actors

    def _staff(self) -> None:
        """Start what is not there (any more)."""
        roles = {
            "worker1": ("worker", "-p", "2", "-c", str(SLOTS)),
            "worker2": ("worker", "-p", "1", "-c", str(SLOTS)),
            "scheduler": ("scheduler",),
            "server": ("server", "--http", f"127.0.0.1:{self.port}", "--grpc", "127.0.0.1:0"),
        }
        for name, command in roles.items():
            if name not in self.staff or self.staff[name].poll() is not None:
                self.staff[name] = self._start(name, command)

    def _start(self, name: str, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dray", "-A", "durable_app:app", *command],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _kill_until(self, end: float) -> None:
        owed = ["executor", "worker", "scheduler", "server"]
        while time.monotonic() < end:
            time.sleep(self.dice.uniform(0.3, 1.2))
            self._staff()
            self._send()
            kind = owed[-1] if owed else self.dice.choice(["executor"] * 4 + ["child", "worker", "scheduler"])
            victim = self._victim(kind)
            if victim is not None:
                owed = [one for one in owed if one != kind]
                os.kill(victim, signal.SIGKILL)
                self.report.kills[kind] += 1

    def _victim(self, kind: str) -> int | None:
        running = {name: one.pid for name, one in self.staff.items() if one.poll() is None}
        if kind in ("scheduler", "server"):
            return running.get(kind)
        workers = [pid for name, pid in running.items() if name.startswith("worker")]
        if kind != "worker":
            workers = [child for pid in workers for child in executors_of(pid)]
        if kind == "child":
            workers = [child for pid in workers for child in children_of(pid)]
        return self.dice.choice(workers) if workers else None

    def _send(self) -> None:
        """Two events for each job that waits for them: over HTTP if the server answers, else directly."""
        waiting = [id for id, shape in self.ids.items() if shape == "letters"]
        for id in self.dice.sample(waiting, min(3, len(waiting))):
            for number in (1, 2):
                self._send_one(id, number)

    def _send_one(self, id: str, number: int) -> None:
        url = self._server_url()
        if url is not None and self.dice.random() < 0.5:
            try:
                httpx.post(
                    f"{url}/api/jobs/{id}/events/go", params={"id": f"m{number}"}, json=number, timeout=2
                )
            except httpx.HTTPError:
                return
        else:
            try:
                self.app.job(id).send("go", number, id=f"m{number}")
            except Exception:  # it has ended, or the broker is busy: it is sent again
                return

    def _server_url(self) -> str | None:
        log = self.folder / "server.log"
        for line in reversed(log.read_text(errors="replace").splitlines() if log.exists() else []):
            if "http://127.0.0.1:" in line:
                return "http://127.0.0.1:" + line.split("http://127.0.0.1:")[1].split()[0].strip("/.,")
        return None

    def _finish(self, deadline: float) -> None:
        """Without kills everything ends."""
        while time.monotonic() < deadline:
            self._staff()
            for id, shape in self.ids.items():
                if shape == "letters":
                    for number in (1, 2):
                        self._send_one(id, number)
            if all(self.app.job(id).status().finished for id in self.ids):
                return
            time.sleep(0.5)

    def _stop(self) -> None:
        for one in self.staff.values():
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in self.staff.values():
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                self.report.problems.append(f"{one.args!r} did not stop")
                one.kill()
                one.wait()

    # reckoning

    def _reckon(self) -> None:
        tokens: dict[tuple[str, str], list[str]] = defaultdict(list)
        undone: set[str] = set()
        for line in self.ledger.read_text().splitlines():
            job, step, token = line.split()
            if step == "undo":
                undone.add(token)
            else:
                tokens[job, step].append(token)
        self.report.effects = Counter({what: len(found) for what, found in tokens.items()})
        for id, shape in self.ids.items():
            self._check(id, shape, tokens, undone)

    def _check(self, id: str, shape: str, tokens: dict[tuple[str, str], list[str]], undone: set[str]) -> None:
        job, problems = self.app.job(id), self.report.problems
        info = job.info()
        self.report.ends[f"{shape} {info.status}"] += 1
        wanted = State.DEAD if shape == "doomed" else State.SUCCEEDED
        if info.status is not wanted:
            problems.append(f"{id} ({shape}) is {info.status}: {info.reason or job.why().text}")
            return
        values: dict[str, Any] = {
            step.id: self.app.codecs.decode_value(step.value)
            for step in job.steps()
            if step.value is not None and not step.id.startswith(("undo(", "event("))
        }
        for step, value in values.items():
            if not step.startswith("call(") and value not in tokens[id, step]:
                problems.append(f"{step} of {id} is remembered as {value}, which never happened")
            if shape == "doomed" and value not in undone:
                problems.append(f"{step} of {id} was not undone")
            if shape == "saga" and value in undone:
                problems.append(f"{step} of {id} was undone, and the job succeeded")
        whole = shape in ("line", "plain", "alone", "wide", "parent")
        if whole and sorted(info.result or ()) != sorted(values.values()):
            problems.append(f"{id} ({shape}) returned {info.result}, its log has {values}")
        if shape == "letters" and sorted(info.result[:2]) != [1, 2]:
            problems.append(f"{id} received {info.result[:2]}")
