"""The service under load: `dray server` over HTTP and gRPC, beside servers that do nothing.

wire.py        a small HTTP/1.1 client on raw sockets
client.py      a process of its own that drives a server, and says how long each request took
floor.py       servers with empty handlers: what Starlette, uvicorn and grpcio cost by themselves
node.py        the Node worker of examples/
stage.py       starts and stops all of that, on SQLite and on Valkey
cases.py       rates and percentiles of each kind of request
crowd.py       the part of it that asks for too much
overload.py    too much to do, a broker that stands still, huge requests, readers that do not read, SIGKILL
"""
