"""The app over gRPC: `dray.v1.TaskQueue`, as proto/dray/v1/dray.proto says.

dray_pb2          made from the .proto by generate; dray_pb2.pyi are its types
generate          calls protoc
messages          our own values as messages, and back
errors            errors as status codes and trailers
call_context      one call, as the methods see it
request_reader    reads requests within bounds
producer_methods  enqueue, get, wait, cancel, delete, list queues, watch events
worker_methods    for workers in other languages: fetch, ack, nack, extend
work_method       for workers that stay: one stream of jobs and outcomes
service           the table of methods; admits and answers calls
sweeper           sweeps while no Python worker does
"""
