"""Connects an app with FastAPI or Starlette: opens and closes it, hands it to handlers, mounts its service.

web = FastAPI(lifespan=lifespan(app))
mount(web, app, "/dray")                      # HTTP API and dashboard; callers need a key

@web.post("/signup")
async def signup(to: str, jobs: Annotated[App, Depends(get_app)]) -> str:
    return (await send_welcome.aenqueue(to)).id
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from types import FrameType
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from dray.app import App
from dray.errors import BrokerError, DrayError
from dray.serve.http import HttpService, asgi

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
"""A lifespan of Starlette that yields the state of every request."""
OwnLifespan = Lifespan | Callable[[Any], AbstractAsyncContextManager[None]]

STATE: Final = "dray"
"""The name of the app in the state of a request."""
_SERVICES: Final = "dray_services"

log = logging.getLogger("dray.serve")


def lifespan(app: App, inner: OwnLifespan | None = None) -> Lifespan:
    """A lifespan that connects to the broker at the start, and closes all connections at the end.

    `inner` is a lifespan of your own: it is entered first and left last, and its state is kept. A broker that
    is away does not keep the application from starting: the first call connects.
    """

    @asynccontextmanager
    async def live(web: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with inner(web) if inner is not None else nullcontext() as state:
            await _connect(app)
            with _before_signals(lambda: _end_streams(web)):
                try:
                    yield {**(state or {}), STATE: app}
                finally:
                    _end_streams(web)
                    app.close()

    return live


def _end_streams(web: Any) -> None:
    for service in getattr(web.state, _SERVICES, ()):
        service.close()


@contextmanager
def _before_signals(act: Callable[[], None]) -> Iterator[None]:
    """Act when a signal asks the server to stop: it then waits for all streams, before the lifespan ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: FrameType | None) -> None:
        act()
        if callable(then := before[signal.Signals(number)]):
            then(number, frame)

    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


async def _connect(app: App) -> None:
    try:
        await app.job("none").astatus()
    except BrokerError as error:
        log.warning("the broker of %s does not answer yet: %s", app.name, error)


def get_app(connection: HTTPConnection) -> App:
    """The app of this application, as a dependency: `jobs: Annotated[App, Depends(get_app)]`."""
    app = getattr(connection.state, STATE, None)
    if not isinstance(app, App):
        raise DrayError(
            "no dray app here: give the web application lifespan=dray.contrib.fastapi.lifespan(app)"
        )
    return app


def mount(web: Starlette, app: App, path: str = "/dray", *, open: bool = False) -> HttpService:
    """Mount the HTTP API, and the dashboard where it is built, below a path.

    Callers need a key, unless `open` allows all because your application protects the path itself. With
    `lifespan` its streams and waits end when the application stops.
    """
    service = asgi(app, open=open)
    web.mount(path, service, name="dray")
    setattr(web.state, _SERVICES, (*getattr(web.state, _SERVICES, ()), service))
    return service
