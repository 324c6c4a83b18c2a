"""The service: an app over HTTP and gRPC. Each part is loaded when it is used, as each has its own extra.

errors            errors as replies: one table of codes and statuses
browser_security  hosts, origins, headers
auth              the key of a request, and what its caller may do and see
deadline          one timeout for all phases of a request
admission         checks key, role, rate and load of a request: the same for HTTP and gRPC
connections       the number of connections, and the share of each address
models            bodies and queries, as msgspec Structs
event_feed        following the broker's events
request           one request of an admitted caller
http_request      one HTTP request, read from ASGI
routes            the table that drives routing, roles and the OpenAPI document
openapi           the document
enqueue queues jobs changes durable flows schedules   handlers of jobs and queues
history events keys guarantees session monitoring     handlers of all else
dashboard         the dashboard: one page and its files, which `ui/build.py` makes
http              the ASGI app
httptools_protocol http_protocol   one connection: its bytes as requests, within bounds
http_listener     accepts connections, ends idle ones
rpc/              the methods of gRPC
grpc              the gRPC server
grpc_sidecar      both in one process
server            `dray server`: uvicorn, signals, TLS
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.serve.http import HttpService, asgi

__all__ = ["HttpService", "asgi"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("dray.serve.http"), name)
    return value
