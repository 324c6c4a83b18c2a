"""Reads the inputs of runs before they start: the results of the jobs that they waited for.

Runs that begin in one turn of the loop are read together. Meanwhile they count as running, and can be
stopped.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from dray.broker.verbs import Broker
from dray.context import EndRun
from dray.errors import BrokerError
from dray.flows.inputs import resolve, with_payload
from dray.job import Job, Outcome
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import Runner
from dray.worker.run.run_state import Ended, RunState

PAUSE: Final = 0.5
"""Seconds between tries while the broker is away."""


class Inputs:
    """Gives runs their inputs, then passes them on to the runner that runs them."""

    def __init__(self, broker: Broker, judge: Judge) -> None:
        self._broker, self._judge = broker, judge
        self._loop = asyncio.get_running_loop()
        self._new: list[tuple[RunState, Ended, Runner]] = []
        self._reading: dict[RunState, tuple[Ended, Runner]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def before(self, runner: Runner) -> Runner:
        return _Before(self, runner)

    def add(self, run: RunState, ended: Ended, runner: Runner) -> None:
        if not self._new:
            task = self._loop.create_task(self._read())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._new.append((run, ended, runner))
        self._reading[run] = (ended, runner)

    def drop(self, run: RunState) -> bool:
        """End a run that has no inputs yet; False if it has passed on."""
        if (entry := self._reading.pop(run, None)) is None:
            return False
        entry[0](run, self._judge.stopped(run))
        return True

    async def _read(self) -> None:
        await asyncio.sleep(0)  # the rest of the batch joins
        batch, self._new = self._new, []
        jobs = [run.taken.job for run, _, _ in batch]
        while any(run in self._reading for run, _, _ in batch):
            try:
                found = await resolve(self._broker, jobs)
            except (BrokerError, OSError):
                await asyncio.sleep(PAUSE)
            except Exception as error:
                self._fail(batch, error)
            else:
                self._pass_on(batch, found)

    def _pass_on(self, batch: list[tuple[RunState, Ended, Runner]], found: list[bytes | EndRun]) -> None:
        for (run, ended, runner), payload in zip(batch, found, strict=True):
            if self._reading.pop(run, None) is None:
                continue
            if isinstance(payload, EndRun):
                ended(run, self._judge.ended_by(run, payload))
                continue
            job: Job = with_payload(run.taken.job, payload)
            run.taken, run.runner = msgspec.structs.replace(run.taken, job=job), runner
            runner.start(run, ended)

    def _fail(self, batch: list[tuple[RunState, Ended, Runner]], error: Exception) -> None:
        for run, ended, _ in batch:
            if self._reading.pop(run, None) is not None:
                outcome: Outcome = self._judge.by_the_rules(run, error, None)
                ended(run, outcome)


class _Before:
    """The runner of runs whose inputs are read first."""

    def __init__(self, inputs: Inputs, runner: Runner) -> None:
        self._inputs, self._runner = inputs, runner

    def start(self, run: RunState, ended: Ended) -> None:
        self._inputs.add(run, ended, self._runner)

    def stop(self, run: RunState) -> None:
        if not self._inputs.drop(run):
            self._runner.stop(run)

    def close(self) -> None:
        """The runner behind it is closed by its owner."""
