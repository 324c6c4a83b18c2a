"""Servers that do nothing, in a process of their own: an empty route, an empty unary method, an echo.

    python -m bench.service.floor

The parent reads the two ports from the first line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dray.worker.process import new_event_loop


async def _empty(request: Request) -> Response:
    await request.body()
    return Response(b"{}", media_type="application/json")


async def _nothing(request: bytes, context: Any) -> bytes:
    return b""


async def _back(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    """Each message is answered with as many bytes."""
    async for message in requests:
        yield message


async def _serve() -> None:
    rpc = grpc.aio.server()
    handlers: Any = {
        "Nothing": grpc.unary_unary_rpc_method_handler(_nothing),
        "Back": grpc.stream_stream_rpc_method_handler(_back),
    }
    rpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor.Floor", handlers),))
    rpc_port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    web = Starlette(routes=[Route("/", _empty, methods=["GET", "POST"])])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        print(listening.getsockname()[1], rpc_port, flush=True)
        config = uvicorn.Config(web, log_config=None, access_log=False, lifespan="off", ws="none")
        await uvicorn.Server(config).serve(sockets=[listening])
    await rpc.stop(0)


def main() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve())


if __name__ == "__main__":
    main()
