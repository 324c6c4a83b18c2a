"""Tracing with OpenTelemetry: a span for every enqueue and every attempt, in one trace.

Switched on by the setting `otel` or by `app.trace()`; needs `dray[otel]`. The OpenTelemetry SDK, set up by
the app's module or by `opentelemetry-instrument`, exports the spans. The trace travels in the job's headers
(W3C `traceparent`, and other propagators that are set), so each attempt, on any machine, belongs to the trace
of the enqueue. Names and attributes follow the conventions for messaging.

An unsampled job costs next to nothing: if its header says so, no span is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import baggage, context, propagate, trace
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from dray.job import Outcome, OutcomeKind, Taken

if TYPE_CHECKING:
    from dray.task import Call

SYSTEM: Final = "dray"
PARENT: Final = "traceparent"
_UNSAMPLED: Final = "-00"
_LENGTH: Final = 55
_FAILED: Final = frozenset({OutcomeKind.RETRY, OutcomeKind.DEAD, OutcomeKind.CRASHED})


class Tracing:
    """Makes the spans of one app."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=provider)
        self._provider = provider

    @contextmanager
    def sending(self, calls: Sequence[Call[Any]], queue: str) -> Iterator[dict[str, str]]:
        """Around an enqueue. Yields the headers that carry the trace; a batch has one span for all."""
        current = trace.get_current_span()
        if current.get_span_context().is_valid and not current.is_recording():
            yield _headers(current)
            return
        span = self._tracer.start_span(f"send {queue}", kind=SpanKind.PRODUCER)
        if span.is_recording():
            span.set_attributes(_sent(calls, queue))
        with trace.use_span(span, end_on_exit=True):  # records an error that passes through
            yield _headers(span)

    @contextmanager
    def running(self, taken: Taken) -> Iterator[Attempt]:
        """Around one attempt, in the thread or task that runs it."""
        job = taken.job
        parent = job.headers.get(PARENT, "")
        if len(parent) == _LENGTH and parent.endswith(_UNSAMPLED) and len(job.headers) == 1:
            token = context.attach(set_span_in_context(_Unsampled(parent), _ROOT))
            try:
                yield Attempt(None, parent[3:35])
            finally:
                context.detach(token)
            return
        span = self._tracer.start_span(
            f"process {job.queue}", propagate.extract(job.headers, _ROOT), SpanKind.CONSUMER
        )
        if span.is_recording():
            span.set_attributes(_processed(taken))
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            about = span.get_span_context()  # not valid without an SDK
            yield Attempt(span, trace.format_trace_id(about.trace_id) if about.is_valid else None)

    @contextmanager
    def step(self, id: str, number: int) -> Iterator[None]:
        """Around one try of a step, below the span of its attempt."""
        if not trace.get_current_span().is_recording():
            yield
            return
        with self._tracer.start_as_current_span(f"step {id}", kind=SpanKind.INTERNAL) as span:
            span.set_attributes({"dray.step": id, "dray.try": number})
            yield

    def flush(self, timeout: float) -> None:
        """Export the spans that the SDK still holds: executors end without exit handlers."""
        provider = self._provider or trace.get_tracer_provider()
        force = getattr(provider, "force_flush", None)  # the API without an SDK has nothing to flush
        if force is not None:
            force(int(timeout * 1000))


_ROOT: Final = context.Context()


class Attempt:
    """The span of one attempt, if it has one."""

    __slots__ = ("_span", "trace")

    def __init__(self, span: Span | None, trace_id: str | None) -> None:
        self._span, self.trace = span, trace_id

    def ended(self, outcome: Outcome) -> None:
        """Record the outcome of the run."""
        span = self._span
        if span is None or not span.is_recording():
            return
        span.set_attribute("dray.outcome", str(outcome.kind))
        if outcome.kind in _FAILED:
            error = outcome.error
            span.set_attribute("error.type", "_OTHER" if error is None else error.type)
            span.set_status(Status(StatusCode.ERROR, None if error is None else error.message))
            if error is not None:
                span.add_event(
                    "exception",
                    {
                        "exception.type": error.type,
                        "exception.message": error.message,
                        "exception.stacktrace": error.traceback,
                    },
                )


class _Unsampled(NonRecordingSpan):
    """The parent named by a header, which is parsed only on request."""

    def __init__(self, header: str) -> None:
        self._header = header

    def get_span_context(self) -> SpanContext:
        header = self._header
        try:
            return SpanContext(int(header[3:35], 16), int(header[36:52], 16), True, TraceFlags(0))
        except ValueError:
            return trace.INVALID_SPAN_CONTEXT


def _headers(span: Span) -> dict[str, str]:
    about = span.get_span_context()
    if about.is_valid and not about.trace_flags.sampled and not baggage.get_all():
        trace_id, span_id = trace.format_trace_id(about.trace_id), trace.format_span_id(about.span_id)
        return {PARENT: f"00-{trace_id}-{span_id}{_UNSAMPLED}"}
    headers: dict[str, str] = {}
    propagate.inject(headers, set_span_in_context(span))
    return headers


def _sent(calls: Sequence[Call[Any]], queue: str) -> Mapping[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
    }
    if len(calls) == 1:
        return attributes | {"dray.task": calls[0].task}
    return attributes | {"messaging.batch.message_count": len(calls)}


def _processed(taken: Taken) -> Mapping[str, str | int]:
    job = taken.job
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "dray.task": job.task,
        "dray.attempt": taken.attempt,
        "dray.run": taken.run,
        "dray.priority": job.priority,
    }
