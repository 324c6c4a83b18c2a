"""Spans of enqueues and attempts: made by the OpenTelemetry SDK, across real processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode
from workshop import live_of

from dray import App, Context, Reject
from dray.context import CURRENT
from dray.job import Job, Taken
from dray.worker.logs import ConsoleFormatter, JsonFormatter


class Spans:
    """An app, and the spans it makes."""

    def __init__(self, **sampling: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**sampling)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.app = App("traced", broker="memory://", retries=1)
        self.app.trace(self.provider)
        self.seen: list[trace.SpanContext] = []

        @self.app.task
        async def look() -> str:
            self.seen.append(trace.get_current_span().get_span_context())
            return trace.format_trace_id(self.seen[-1].trace_id)

        @self.app.task
        def look_in_thread() -> str:
            self.seen.append(trace.get_current_span().get_span_context())
            return trace.format_trace_id(self.seen[-1].trace_id)

        @self.app.task
        async def fail() -> None:
            raise ValueError("no such thing")

        @self.app.task
        async def reject() -> None:
            raise Reject("not today")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.app.close()


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("task", ["look", "look_in_thread"])
def test_an_attempt_belongs_to_the_trace_of_whoever_enqueued_it(spans: Spans, task: str) -> None:
    with spans.app.testing() as shop:
        with spans.tracer.start_as_current_span("request") as request:
            job = spans.app.tasks[task].enqueue()
        shop.drain()
        assert job.get() == trace.format_trace_id(request.get_span_context().trace_id)
    (sent,), (processed,) = spans.named("send default"), spans.named("process default")
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert spans.seen[0].span_id == processed.context.span_id
    assert of(sent)["dray.task"] == task
    about = of(processed)
    assert about["messaging.system"] == "dray"
    assert about["messaging.message.id"] == job.id
    assert (about["dray.task"], about["dray.attempt"], about["dray.outcome"]) == (task, 1, "succeeded")


def test_each_attempt_has_a_span_and_a_failed_one_says_why(spans: Spans) -> None:
    with spans.app.testing() as shop:
        spans.app.tasks["fail"].enqueue()
        shop.advance(60)
        spans.app.tasks["reject"].enqueue()
        shop.drain()
    first, second, rejected = spans.named("process default")
    assert [of(span)["dray.attempt"] for span in (first, second)] == [1, 2]
    assert [of(span)["dray.outcome"] for span in (first, second, rejected)] == ["retry", "dead", "dead"]
    assert first.context.trace_id == second.context.trace_id
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "no such thing"
    assert of(first)["error.type"] == "ValueError"
    (event,) = first.events
    assert "ValueError: no such thing" in str((event.attributes or {})["exception.stacktrace"])


def test_calls_enqueued_together_share_a_span(spans: Spans) -> None:
    look = spans.app.tasks["look"]
    with spans.app.testing() as shop:
        spans.app.enqueue_many([look.call(), look.call(), look.call()])
        shop.drain()
    (sent,) = spans.named("send default")
    assert of(sent)["messaging.batch.message_count"] == 3
    assert [span.parent and span.parent.span_id for span in spans.named("process default")] == [
        sent.context.span_id
    ] * 3


def test_an_enqueue_that_fails_is_an_error_of_its_span(spans: Spans) -> None:
    with spans.app.testing(), pytest.raises(ValueError, match="id"):
        spans.app.tasks["look"].using(id="x" * 300).enqueue()
    with spans.app.testing():
        spans.app.tasks["look"].using(id="same").enqueue()
        with pytest.raises(Exception, match="same"):
            spans.app.tasks["look"].using(id="same", on_duplicate="raise").enqueue()
    assert [span.status.status_code for span in spans.named("send default")] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_headers_and_middleware_go_beside_it(spans: Spans) -> None:
    @spans.app.enqueue_middleware
    async def stamp(outgoing: Any, call_next: Any) -> Any:
        outgoing.headers["by"] = "middleware"
        return await call_next()

    headers: list[dict[str, str]] = []

    @spans.app.middleware
    async def note(ctx: Any, call_next: Any) -> Any:
        headers.append(ctx.headers)
        return await call_next()

    with spans.app.testing() as shop:
        token = context.attach(baggage.set_baggage("tenant", "42"))
        spans.app.tasks["look"].using(headers={"own": "yes"}).enqueue()
        context.detach(token)
        shop.drain()
    (told,) = headers
    assert told.keys() == {"traceparent", "baggage", "by", "own"}
    assert told["baggage"] == "tenant=42"


def test_what_is_not_sampled_makes_no_span_and_stays_so(spans: Spans) -> None:
    quiet = Spans(sampler=ParentBased(ALWAYS_OFF))
    with quiet.app.testing() as shop:
        with quiet.tracer.start_as_current_span("request") as request:
            quiet.app.tasks["look"].enqueue()
        quiet.app.tasks["look"].enqueue()
        shop.drain()
    quiet.app.close()
    assert quiet.exporter.get_finished_spans() == ()
    inside, alone = quiet.seen
    assert inside.trace_id == request.get_span_context().trace_id
    assert inside.is_valid
    assert alone.is_valid
    assert not inside.trace_flags.sampled
    assert not alone.trace_flags.sampled


@pytest.mark.parametrize(
    "header", ["", "nonsense", "00-" + "z" * 32 + "-" + "0" * 16 + "-00", "00-" + "0" * 49 + "-00", "\u2603"]
)
def test_a_header_that_makes_no_sense_does_no_harm(spans: Spans, header: str) -> None:
    taken = Taken(Job(id="a", task="look", headers={"traceparent": header}), 1)
    assert spans.app.tracing is not None
    with spans.app.tracing.running(taken):
        trace.get_current_span().get_span_context()


def test_without_the_setting_nothing_is_sent_along() -> None:
    app = App("plain", broker="memory://")

    @app.task
    def say() -> None: ...

    assert app.tracing is None
    assert app.job_builder.build(app.tasks["say"].call()).headers == {}
    assert App("traced", broker="memory://", otel=True).tracing is not None


def test_a_failure_without_an_sdk_is_one_log_line_that_names_no_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App("traced", broker="memory://", retries=0)
    app.trace(trace.NoOpTracerProvider())

    @app.task
    async def forge() -> None:
        raise ValueError("bad\n12:00:00.000 INFO dray.worker: all is well \x1b[31m")

    with app.testing() as t:
        forge.enqueue()
        t.drain()
    [record] = [record for record in caplog.records if " is dead after " in record.getMessage()]
    line, *traceback = ConsoleFormatter().format(record).splitlines()
    assert line.isprintable()
    assert all(row.startswith("    ") and row.isprintable() for row in traceback)
    assert "bad\\n12:00" in line
    assert "trace" not in json.loads(JsonFormatter().format(record))


def test_log_lines_of_middleware_say_which_job_also_where_they_name_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, lines = App("traced", broker="memory://"), []
    caplog.set_level(logging.INFO)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, log = Lines(), logging.getLogger("shop.middleware")
    handler.setFormatter(ConsoleFormatter())
    log.addHandler(handler)

    @app.middleware
    async def around(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object:
        log.info("begins")
        try:
            return await call_next()
        finally:
            log.info("ends %s", ctx.job.id)

    @app.task
    def greet() -> None: ...

    try:
        with app.testing() as t:
            job = greet.enqueue()
            t.drain()
    finally:
        log.removeHandler(handler)
    assert len(lines) == 2
    assert all(line.endswith(f"(greet, job {job.id}, attempt 1)") for line in lines)


def test_log_lines_from_inside_a_job_say_which_job_and_trace(spans: Spans) -> None:
    live = live_of(spans.app, "look")
    made = logging.LogRecord("shop", logging.INFO, __file__, 1, "half way", (), None)
    token = CURRENT.set(live)
    try:
        live.trace = "f" * 32
        line = json.loads(JsonFormatter().format(made))
        text = ConsoleFormatter().format(made)
    finally:
        CURRENT.reset(token)
    assert (line["job"], line["task"], line["attempt"], line["trace"]) == (
        live.taken.job.id,
        "look",
        1,
        "f" * 32,
    )
    assert text.endswith(f"half way (look, job {live.taken.job.id}, attempt 1)")


SHOP = """
    import json, os
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from dray import App

    class Lines(SpanExporter):
        def export(self, spans):
            text = "".join(f"{span.name} {span.context.trace_id:032x} {os.getpid()}\\n" for span in spans)
            with open("spans", "a") as file:
                file.write(text)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Lines()))
    trace.set_tracer_provider(provider)
    app = App("shop")

    @app.task
    async def on_loop(): ...

    @app.task
    def in_thread(): ...

    @app.task(isolate="process")
    def in_child(): ...

    if __name__ == "__main__":
        with trace.get_tracer("web").start_as_current_span("request"):
            for task in app.tasks.values():
                task.enqueue()
"""


def test_one_trace_goes_through_all_processes(tmp_path: Path) -> None:
    (tmp_path / "dray.toml").write_text('app = "shop:app"\notel = true\n')
    (tmp_path / "shop.py").write_text(dedent(SHOP))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    for command in (["shop.py"], ["-m", "dray", "worker", "--burst", "-p", "1"]):
        subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            check=True,
            timeout=120,
            capture_output=True,
        )
    lines = [line.split() for line in (tmp_path / "spans").read_text().splitlines()]
    names = sorted(" ".join(line[:-2]) for line in lines)
    assert names == ["process default"] * 3 + ["request"] + ["send default"] * 3
    assert len({line[-2] for line in lines}) == 1
    assert len({line[-1] for line in lines}) == 3  # the producer, an executor, its child
