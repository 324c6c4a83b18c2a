"""A project in a folder of its own, and the command `dray` in it: in this process, or as a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dray.app import App
from dray.broker.verbs import Beat, Broker, Filter
from dray.cli import main
from dray.client.link import Link
from dray.job import Error, Outcome, OutcomeKind
from dray.loading import load_app

SHOP = """
import os
import time

from dray.app import App
from dray.context import Context

app = App("shop")


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="email", retries=0)
def send(to: str, body: str = "") -> str:
    return to


@app.task(retries=0)
def boom(n: int = 1) -> None:
    raise ValueError(f"boom {n}")


@app.task(name="shop.report", priority="low", tags=["nightly"])
def report(ctx: Context, day: str = "") -> dict[str, str]:
    return {"day": day, "job": ctx.job.id}


@app.task
def snooze(seconds: float) -> None:
    time.sleep(seconds)
"""

_count = 0


class Ended:
    """How a command ended and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """`run` calls the command here, `spawn` as a process. Both in the project's folder."""

    def __init__(self, folder: Path, module: str, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.module, self._capture = folder, module, capture
        self.environ = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}

    def run(self, *args: str, code: int | None = 0) -> Ended:
        self._capture.readouterr()
        code_of_end = main(args)
        said = self._capture.readouterr()
        ended = Ended(code_of_end, said.out, said.err)
        assert code is None or ended.code == code, ended
        return ended

    def json(self, *args: str, code: int = 0) -> Any:
        return self.run(*args, "--json", code=code).json

    def spawn(
        self,
        *args: str,
        code: int | None = 0,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        timeout: float = 120,
    ) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "dray", *args],
            cwd=folder or self.folder,
            env=self.environ | dict(environ or {}),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
        assert code is None or ended.code == code, ended
        ours = "\nTraceback (most recent call last)"  # that of a job is indented
        assert code is None or ours not in f"\n{ended.err}", ended
        return ended

    def app(self) -> App:
        """The project's app, for looking at what a command did."""
        return load_app(f"{self.module}:app", self.folder)

    def enqueue(self, task: str, *args: Any, **options: Any) -> str:
        app = self.app()
        try:
            return app.using(**options).enqueue(task, *args).id
        finally:
            app.close()

    def finish(self, id: str, kind: OutcomeKind = OutcomeKind.DEAD, **outcome: Any) -> None:
        """Take this one job as a worker would, and settle it."""
        app = self.app()
        try:
            app.client.block(_finish, app, id, kind, outcome)
        finally:
            app.close()

    def take(self, id: str) -> None:
        """Take this one job and keep it running."""
        app = self.app()
        try:
            app.client.block(_take, id)
        finally:
            app.close()


async def _take(link: Link, id: str) -> int:
    broker: Broker = link.broker
    (record,) = await broker.get([id])
    assert record is not None
    session = f"s-{id}-{record.run}"
    await broker.renew([Beat(session, 60_000)])
    job = record.job
    only = Filter(frozenset({job.task}), frozenset({job.priority}))
    taken = await broker.take(session, 1, [job.queue], only, 1)
    assert [one.job.id for one in taken] == [id]
    return taken[0].run


async def _finish(link: Link, app: App, id: str, kind: OutcomeKind, more: dict[str, Any]) -> None:
    run = await _take(link, id)
    more = dict(more)
    if kind is OutcomeKind.DEAD:
        more.setdefault("reason", "retries used up")
        more.setdefault("error", Error("ValueError", "boom", "Traceback:\n  boom"))
    if "result" in more:
        more["result"] = app.codecs.encode_value(more["result"])
    session = f"s-{id}-{run - 1}"
    (settled,) = await link.broker.settle(session, [Outcome(id=id, run=run, kind=kind, **more)])
    assert settled.verdict == "accepted"
    await link.broker.release(session, suspect=False)


def make_shell(folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Shell:
    """A project whose module has a name of its own: modules stay loaded for as long as the tests run."""
    global _count
    _count += 1
    module = f"shop_{os.getpid()}_{_count}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(SHOP)
    (folder / "dray.toml").write_text(f'app = "{module}:app"\n')
    for name in list(os.environ):
        if name.startswith("DRAY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    return Shell(folder, module, capture)
