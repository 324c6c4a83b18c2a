"""An app inside FastAPI, behind a real uvicorn and in process."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request

from dray import App, DrayError
from dray.contrib.fastapi import OwnLifespan, get_app, lifespan, mount

Jobs = Annotated[App, Depends(get_app)]


def shop(tmp_path: Path) -> App:
    app = App("shop", broker=f"sqlite:///{tmp_path}/shop.db")

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    return app


def web_for(app: App, inner: OwnLifespan | None = None, *, open: bool = False) -> FastAPI:
    web = FastAPI(lifespan=lifespan(app, inner))
    mount(web, app, open=open)

    @web.post("/double", status_code=202)
    async def double(number: int, jobs: Jobs) -> dict[str, str]:
        return {"job": (await jobs.aenqueue("double", number)).id}

    @web.get("/inner")
    async def read_inner(request: Request) -> dict[str, str]:
        return {"inner": request.state.mine}

    return web


@contextlib.contextmanager
def served(web: Starlette) -> Iterator[str]:
    """A real uvicorn on a free port."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(web, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def test_a_handler_enqueues_and_the_mounted_api_knows_the_job(tmp_path: Path) -> None:
    app = shop(tmp_path)
    with served(web_for(app, open=True)) as url:
        id = httpx.post(f"{url}/double", params={"number": 21}).json()["job"]
        assert httpx.get(f"{url}/dray/api/jobs/{id}").json()["status"] == "ready"
    assert app.job(id).status() == "ready"


def test_the_mounted_api_needs_a_key(tmp_path: Path) -> None:
    with served(web_for(shop(tmp_path))) as url:
        assert httpx.get(f"{url}/dray/api/queues").status_code == 401
        assert httpx.get(f"{url}/dray/healthz").status_code == 200


def test_a_lifespan_of_ones_own_is_entered_first_and_left_last(tmp_path: Path) -> None:
    app, seen = shop(tmp_path), []

    @contextlib.asynccontextmanager
    async def mine(web: object) -> AsyncIterator[dict[str, str]]:
        seen.append("entered")
        yield {"mine": "kept"}
        seen.append("left")

    with served(web_for(app, mine)) as url:
        assert httpx.get(f"{url}/inner").json() == {"inner": "kept"}
        assert seen == ["entered"]
    assert seen == ["entered", "left"]


WEB = """
from fastapi import FastAPI

from dray import App
from dray.contrib.fastapi import lifespan, mount

app = App("shop")
web = FastAPI(lifespan=lifespan(app))
mount(web, app, open=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_followers_of_events_do_not_keep_the_server_from_stopping(tmp_path: Path, number: int) -> None:
    (tmp_path / "web.py").write_text(WEB)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        command = [sys.executable, "-m", "uvicorn", "web:web", "--fd", str(listening.fileno())]
        server = subprocess.Popen(
            command, cwd=tmp_path, pass_fds=[listening.fileno()], stderr=subprocess.PIPE
        )
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/dray/api/events"
    with server, httpx.stream("GET", url, timeout=60) as following:
        assert following.status_code == 200
        server.send_signal(number)
        for _ in following.iter_bytes():
            """The stream ends by itself."""
        server.communicate(timeout=60)
    assert server.returncode in (0, -number)


def test_the_application_starts_while_the_broker_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        app = App("shop", broker=f"redis://127.0.0.1:{closed.getsockname()[1]}")
        with served(web_for(app, open=True)) as url:
            assert httpx.get(f"{url}/dray/healthz").status_code == 200
    assert "does not answer yet" in caplog.text


def test_without_the_lifespan_the_dependency_says_what_to_do() -> None:
    web = FastAPI()

    @web.get("/")
    async def look(jobs: Jobs) -> str:
        return jobs.name

    async def ask() -> None:
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
            await client.get("/")

    with pytest.raises(DrayError, match=re.escape("lifespan=dray.contrib.fastapi.lifespan(app)")):
        asyncio.run(ask())
