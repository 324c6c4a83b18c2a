"""The service: an app over the network. Each part is loaded when it is asked for, as each has its own extra.

http.py        the ASGI app: from a request to its route, and every reply on its way out
routes.py      what a route is; the table that drives routing, roles and the OpenAPI document
models.py      what goes in and out, as msgspec Structs
refusals.py    errors as replies
callers.py     who asks, and what they may do and see
shields.py     hosts, origins, headers
limits.py      how much at a time, and how often
openapi.py     the document, made from the table
server.py      `dray server`: uvicorn, signals, TLS
grpc.py, rpc/  the same app over gRPC               beside.py    both in one process
submit.py, jobs.py, queues.py, schedules.py, dead.py, feed.py, health.py     the handlers, by topic
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.serve.http import Service, asgi

__all__ = ["Service", "asgi"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("dray.serve.http"), name)
    return value
