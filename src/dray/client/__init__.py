"""From an app to its broker.

waiters             waiting for the end of jobs: one wait at the broker serves all callers
put_batches         puts of one turn of an event loop, sent together
link                a broker object as one thread, or one event loop, uses it
client              the links of an app: one per thread, one per event loop
sync_async          one implementation, two ways to call it: `name` blocks, `aname` is awaited
job_builder         makes a job from a call, its task's options and the settings
enqueue_middleware  middleware around enqueue
tracing             OpenTelemetry: a span for every enqueue and every attempt
"""
