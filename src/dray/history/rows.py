"""Records and events of the broker as rows of the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from dray.broker.verbs import Entry
from dray.codec.payload import Codecs
from dray.errors import CodecError
from dray.history.fingerprint import fingerprint
from dray.history.parameters import Names
from dray.history.redaction import HIDDEN, Redaction, as_json
from dray.history.words import flatten, joined
from dray.job import Error, PastRun, Record, RunEnd, State, lone_run, short_error
from dray.settings import Settings

TRACEBACK_MAX: Final = 16_384
"""Characters of a traceback that are stored: its end, where the error was raised."""
MESSAGE_MAX: Final = 4096
FAILED: Final = frozenset({RunEnd.FAILED, RunEnd.CRASHED})
"""Ends of a run that count as errors."""


class JobRow(NamedTuple):
    """A job as it stood when it was read. The order of the fields is that of the columns of `jobs`."""

    ns: str
    id: str
    created: int
    at: int
    """Its newest change: a run began or ended, or the job ended. Searches order by it."""
    task: str
    queue: str
    state: str
    priority: int
    attempt: int
    runs: int
    due: int | None
    started: int | None
    finished: int | None
    worker: str | None
    job_key: str | None
    job_group: str | None
    parent: str | None
    description: str
    tags: str
    args: str | None
    result: str | None
    progress: str | None
    error_type: str | None
    error: str | None
    traceback: str | None
    fingerprint: str | None
    reason: str | None
    bytes: int
    words: str
    """The words that searches find, those of the error apart."""
    error_words: str


class AttemptRow(NamedTuple):
    """One run of a job, as the columns of `attempts`. `ended` is None while it lasts."""

    ns: str
    id: str
    created: int
    """With the id it names the job: an id may be used again."""
    run: int
    task: str
    queue: str
    started: int
    ended: int | None
    outcome: str
    worker: str | None
    version: str | None
    """The version of the worker, where it is known."""
    waited: int | None
    """Of a first run: milliseconds from when the job could start."""
    error_type: str | None
    error: str | None
    traceback: str | None
    fingerprint: str | None


class EventRow(NamedTuple):
    """An event of the feed, as the columns of `events`."""

    ns: str
    id: str
    run: int
    kind: str
    at: int
    queue: str
    number: int
    """Of the entry of the queue's feed: it orders what happened in the same millisecond."""


class Gap(NamedTuple):
    """Entries of a queue's feed that were dropped unread: those after `after` and before `until`."""

    queue: str
    after: int
    until: int
    at: int
    """When it was noticed."""


class RowMaker:
    """Makes rows of records. It runs no user code: payloads of users' own codecs are left out."""

    def __init__(self, settings: Settings) -> None:
        self._ns, self._payloads = settings.namespace, settings.history_payloads
        self._limits = settings.max_payload, settings.max_result
        self._redaction, self._codecs = Redaction(settings.history_redact), Codecs()
        self.names: Names = {}
        self.versions: Mapping[str, str] = {}
        """Worker → its version."""

    def job(self, record: Record) -> JobRow:
        job, error = record.job, record.error
        arguments = self._arguments(record)
        values = (arguments, self._result(record), self._progress(record))
        texts = [None if value is None else as_json(value) for value in values]
        kind, message, traceback = _error_texts(error)
        words = _words(record, arguments)
        return JobRow(
            ns=self._ns,
            id=job.id,
            created=record.created,
            at=changed_at(record),
            task=job.task,
            queue=job.queue,
            state=record.state,
            priority=job.priority,
            attempt=record.attempt,
            runs=record.run,
            due=job.due if record.due is None else record.due,
            started=record.started,
            finished=record.finished,
            worker=_last_worker(record),
            job_key=job.key,
            job_group=job.group,
            parent=job.parent,
            description=clean(job.description),
            tags=as_json(list(job.tags)),
            args=texts[0],
            result=texts[1],
            progress=texts[2],
            error_type=kind,
            error=message,
            traceback=traceback,
            fingerprint=None if error is None else fingerprint(job.task, error.type, error.message),
            reason=None if record.reason is None else clean(record.reason),
            bytes=sum(map(len, (words, *(text for text in (*texts, message, traceback) if text)))) + 200,
            words=words,
            error_words="" if error is None else joined([error.type, error.message]),
        )

    def attempts(self, record: Record) -> Iterator[AttemptRow]:
        """The runs of a job, as far as the broker keeps them."""
        past = record.past
        if not past and record.state is State.SUCCEEDED:
            past = (lone_run(record.started, record.finished),)
        for run in past:
            yield self._attempt(record, run, _error_of(record, run))
        for going_on in record.runs:
            since = PastRun(going_on.number, going_on.session, going_on.since, 0, RunEnd.LOST)
            yield self._attempt(record, since, None)._replace(ended=None, outcome="running")

    def events(self, entry: Entry) -> Iterator[EventRow]:
        """The events of an entry that name a job."""
        for event in entry.events:
            if event.id:
                yield EventRow(self._ns, event.id, event.run, event.kind, entry.at, entry.queue, entry.number)

    def _attempt(self, record: Record, run: PastRun, error: Error | None) -> AttemptRow:
        job, worker = record.job, worker_of(run.session)
        kind, message, traceback = _error_texts(error)
        could_start = max(record.created, job.due or 0)
        return AttemptRow(
            ns=self._ns,
            id=job.id,
            created=record.created,
            run=run.number,
            task=job.task,
            queue=job.queue,
            started=run.since,
            ended=run.ended,
            outcome=run.how,
            worker=worker,
            version=self.versions.get(worker or ""),
            waited=max(0, run.since - could_start) if run.number == 1 else None,
            error_type=kind,
            error=message,
            traceback=traceback,
            fingerprint=None if error is None else fingerprint(job.task, error.type, error.message),
        )

    def _arguments(self, record: Record) -> dict[str, Any] | None:
        task = record.job.task
        if not self._payloads:
            return None
        if self._redaction.hides_all(task):
            return {"": HIDDEN}
        try:
            args, kwargs = self._codecs.decode_call(record.job.payload, limit=self._limits[0])
        except CodecError:
            return None
        return self._redaction.arguments(task, args, kwargs, self.names.get(task))

    def _progress(self, record: Record) -> Any:
        found = [run.progress for run in record.runs if run.progress is not None]
        return msgspec.to_builtins(found[-1]) if found and self._payloads else None

    def _result(self, record: Record) -> Any:
        if record.result is None or not self._payloads:
            return None
        try:
            value = self._codecs.decode_value(record.result, limit=self._limits[1])
        except CodecError:
            return None
        return self._redaction.result(record.job.task, value)


def _words(record: Record, arguments: object) -> str:
    """The words by which a job is found, those of its error apart."""
    job = record.job
    facts = (job.id, job.task, job.queue, job.key, job.group, job.parent, job.description, record.reason)
    return joined([*(text for text in facts if text), *job.tags, *flatten(arguments)])


def changed_at(record: Record) -> int:
    """The time of the newest change that a record shows."""
    times = [record.created, record.started or 0, record.finished or 0]
    return max(*times, *(run.ended for run in record.past), *(run.since for run in record.runs))


def worker_of(session: str) -> str | None:
    """The worker of a session; executors name theirs `worker/executor.opening`."""
    return session.rpartition("/")[0] or session or None


def _last_worker(record: Record) -> str | None:
    runs = [(run.number, run.session) for run in record.past]
    runs += [(run.number, run.session) for run in record.runs]
    return worker_of(max(runs)[1]) if runs else None


def _error_of(record: Record, run: PastRun) -> Error | None:
    """The full error if it is this run's, else the shortened one that the run keeps."""
    if run.how not in FAILED:
        return None
    if record.error is not None and short_error(record.error) == run.error:
        return record.error
    kind, _, message = run.error.partition(": ")
    return Error(kind or str(run.how), message)


def _error_texts(error: Error | None) -> tuple[str | None, str | None, str | None]:
    if error is None:
        return None, None, None
    return clean(error.type), clean(error.message[:MESSAGE_MAX]), clean(error.traceback[-TRACEBACK_MAX:])


def clean(text: str) -> str:
    """PostgreSQL stores neither NUL nor halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
