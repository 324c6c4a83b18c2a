"""The app over gRPC: `dray.v1.TaskQueue`, as proto/dray/v1/dray.proto says.

service.py     the table of methods; who may call them, how often, and errors on their way out
calling.py     one call, as the methods see it
methods.py     producers and onlookers: enqueue, look, wait, cancel, delete
holding.py     workers in other languages: fetch, ack, nack, extend
watching.py    the stream of events
messages.py    our own values as messages, and back
statuses.py    errors as status codes
upkeep.py      sweeping while no worker does
dray_pb2.py    made from the .proto by generate.py; dray_pb2.pyi are its types
"""
