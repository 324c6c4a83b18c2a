"""The ledger's records of jobs, sessions, keys and documents."""

from __future__ import annotations

from typing import Final

from dray.broker.verbs import Ref
from dray.job import Job, State


class Violation(Exception):
    """Broker, executor or client broke a promise."""

    def __init__(self, invariant: str, message: str, job: str | None = None) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant, self.message, self.job = invariant, message, job


class Life:
    """One job, as seen from outside the broker."""

    def __init__(self, job: Job, born: int) -> None:
        self.origin = job
        """The job as it was put, to recognise a repeated put."""
        self.job = job
        self.born = born
        self.state = State.NOT_FOUND
        self.due: int | None = None
        self.expires: int | None = None
        self.line = 0
        """Its number in line, new whenever it joins the end."""
        self.last = 0
        """Its newest run."""
        self.runs: dict[int, str] = {}
        """The valid runs, and the sessions that hold them."""
        self.failures = 0
        self.crashes = 0
        self.group = 0
        """The most jobs that may share its process, as a suspect; 0: no suspect."""
        self.cancel = False
        self.offered = False
        self.by_duty = False
        """A second run was offered by the duty, which has a budget, not by an operator."""
        self.replayed = False
        self.heard: dict[str, list[State]] = {}
        """The ends of each job it waits for, so far."""
        self.finished: int | None = None
        self.replays = 0
        self.completed: list[int] = []
        """The number of replays before each accepted completion."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def lane(self) -> tuple[str, int, str, str | None, str | None, str | None]:
        job = self.job
        return job.queue, job.priority, job.task, job.group, job.rate_key, job.running_key

    def may_start(self) -> bool:
        """All its dependencies are done, as its orphan rule asks."""
        return self.replayed or all(
            State.SUCCEEDED in ends or (bool(ends) and self.job.orphan == "run")
            for ends in self.heard.values()
        )

    def must_be_cancelled(self) -> bool:
        return self.job.orphan == "cancel" and any(
            ends and ends[0] is not State.SUCCEEDED for ends in self.heard.values()
        )


class SessionRecord:
    """One session, as seen from outside the broker."""

    def __init__(self) -> None:
        self.expires = 0
        self.request = 0
        self.granted: list[Ref] = []
        """The jobs given to the last request."""


NEVER: Final = None


class Claims:
    """The holder of each key, and until when (None: until the job ends)."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[str, int | None]] = {}

    def holder(self, job: Job, now: int) -> str | None:
        """The other job that has the key of this one."""
        if job.key is None:
            return None
        id, until = self._of.get((job.queue, job.key), ("", 0))
        return id if id != job.id and (until is NEVER or now < until) else None

    def claim(self, job: Job, now: int) -> None:
        if job.key is not None:
            until = NEVER if job.key_ttl is None else now + job.key_ttl
            self._of[job.queue, job.key] = (job.id, until)

    def end(self, job: Job, state: State, now: int) -> None:
        if job.key is None or self.holder(job, now) is not None:
            return
        if state is State.SUCCEEDED and job.once is not None:
            self._of[job.queue, job.key] = (job.id, now + job.once)
        elif self._of.get((job.queue, job.key), ("", 0))[0] == job.id:
            del self._of[job.queue, job.key]


class Papers:
    """The documents, and the right answer to a compare-and-set."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[int, int | None]] = {}
        self._highest = 0

    def version(self, kind: str, name: str, now: int) -> int:
        version, expires = self._of.get((kind, name), (0, NEVER))
        return version if expires is NEVER or now < expires else 0

    def written(self, kind: str, name: str, version: int | None, ttl: int | None, now: int) -> None:
        """A write took effect; `version` is the new one, None if it is not known or was a deletion."""
        if version is None:
            self._of.pop((kind, name), None)
            return
        if version <= self._highest:
            raise Violation("documents", f"{kind}/{name} got version {version}, which is not new")
        self._highest = version
        self._of[kind, name] = (version, NEVER if ttl is None else now + ttl)
