"""uvicorn's protocol for one connection. `PROTOCOL` reads with httptools if installed, else with h11."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from uvicorn.protocols.http import h11_impl

if TYPE_CHECKING:
    from dray.serve.httptools_protocol import HttptoolsProtocol


class H11Protocol(h11_impl.H11Protocol):
    """uvicorn's protocol, which also calls `ended` when its connection has ended."""

    ended: Callable[[], None]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended()


HttpProtocol: TypeAlias = "H11Protocol | HttptoolsProtocol"
PROTOCOL: type[HttpProtocol] = H11Protocol
with suppress(ImportError):
    from dray.serve.httptools_protocol import HttptoolsProtocol

    PROTOCOL = HttptoolsProtocol
