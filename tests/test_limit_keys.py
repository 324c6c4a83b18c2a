"""Limit keys are filled from the values that the task will see, whichever way a call arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import msgspec
import pydantic
import pytest
from shell import Shell

from dray import App, InvalidInput
from dray.broker.actions import Query
from dray.client.link import Link
from dray.job import Job
from dray.serve import asgi


@dataclass
class Plain:
    to: str
    copies: int = 1


class Struct(msgspec.Struct):
    to: str
    copies: int = 1


class Model(pydantic.BaseModel):
    to: str
    copies: int = 1


@pytest.fixture(params=[Plain, Struct, Model])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def app(kind: Any) -> Iterator[App]:
    app = App("shop", broker="memory://")

    def send(mail: Any, /, region: str = "eu") -> None: ...

    def spread(*, mail: Any) -> None: ...

    for function, running_key in ((send, "{region}"), (spread, "{mail.copies}")):
        function.__annotations__["mail"] = kind | None
        app.task(rate_limit="1/s", rate_key="to:{mail.to}", max_running=1, running_key=running_key)(function)
    yield app
    app.close()


def keys(app: App) -> set[tuple[str | None, str | None]]:
    found = app.client.block(_jobs)
    return {(job.rate_key, job.running_key) for job in found}


async def _jobs(link: Link) -> list[Job]:
    return [record.job for record in (await link.broker.find(Query())).records]


def test_a_dict_is_as_good_as_an_instance(app: App, kind: Any) -> None:
    send, spread = app.tasks["send"], app.tasks["spread"]
    send.enqueue({"to": "a"})
    send.enqueue(kind(to="a"), region="eu")
    app.enqueue("send", {"to": "a"})
    app.enqueue_many([send.call({"to": "a"})])
    assert keys(app) == {("to:a", "eu")}
    spread.using(delay=5).enqueue(mail={"to": "b", "copies": 2})
    spread.enqueue(mail=kind(to="b", copies=2))
    assert keys(app) == {("to:a", "eu"), ("to:b", "2")}


def test_schedules_fill_keys_from_dicts(app: App) -> None:
    app.every("1m", args=[{"to": "a"}])(app.tasks["send"])
    app.reconcile_schedules()
    app.schedules.create("other", "spread", every="1h", kwargs={"mail": {"to": "b"}})
    app.schedules.change("other", kwargs={"mail": {"to": "c"}})
    app.schedules.trigger("other")
    app.schedules.trigger("send")
    assert keys(app) == {("to:a", "eu"), ("to:c", "1")}


def test_a_request_fills_keys_from_json(app: App) -> None:
    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(asgi(app, open=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/api/jobs", json={"task": "send", "args": [{"to": "a"}]})

    reply = asyncio.run(post())
    assert reply.status_code == 201, reply.text
    assert keys(app) == {("to:a", "eu")}


def test_what_cannot_fill_a_key_names_the_parameter_and_the_field(app: App) -> None:
    with pytest.raises(InvalidInput) as caught:
        app.enqueue("send", {"copies": 2})
    told = str(caught.value)
    assert told.startswith("rate_key='to:{mail.to}': it cannot be filled from this call: parameter 'mail'")
    assert "{mail.to}" in told
    assert "does not fit its annotation" in told
    with pytest.raises(InvalidInput, match=r"parameter 'mail' gives nothing for \{mail.to\} .*NoneType"):
        app.enqueue("send", None)
    assert keys(app) == set()


def test_a_dict_without_a_class_is_told_how_it_is_written() -> None:
    app = App("shop", broker="memory://")

    @app.task(rate_limit="1/s", rate_key="{mail.to}")
    def send(mail: dict[str, str]) -> None: ...

    with pytest.raises(InvalidInput, match=r"annotate it with a class, or write \{mail\[…\]\}"):
        send.enqueue({"to": "a"})


def test_a_text_becomes_what_the_annotation_says_before_it_fills_a_key() -> None:
    app = App("shop", broker="memory://")

    @app.task(rate_limit="1/s", rate_key="{day:%Y}")
    def close_books(day: datetime) -> None: ...

    assert app.job_builder.build(app.call("close_books", "2024-02-29T00:00:00")).rate_key == "2024"


MODULE = """

from dataclasses import dataclass

@dataclass
class Mail:
    to: str

@app.task(rate_limit="1/s", rate_key="{mail.to}")
def post(mail: Mail) -> None: ...
"""


def test_a_shell_fills_keys_from_json(shell: Shell) -> None:
    module = shell.folder / f"{shell.module}.py"
    module.write_text(module.read_text() + MODULE)
    shell.run("enqueue", "post", '{"to": "a@x.org"}')
    app = shell.app()
    assert keys(app) == {("a@x.org", None)}
    app.close()
    wrong = shell.run("enqueue", "post", '{"too": "a@x.org"}', code=None)
    assert wrong.code != 0
    assert "argument 'mail' of post" in wrong.err
    assert "`to`" in wrong.err
