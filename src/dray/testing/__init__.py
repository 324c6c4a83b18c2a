"""`app.testing()`, the pytest plugin, and the conformance suite that every broker passes.

memory_store        the broker of a test: in memory, on a clock that the test moves
loops               an event loop that runs only during a call
listener            the executor's listener: checks for work when the store changes
in_process_worker   the real executor on one event loop, and when it is idle
ticker              schedules, checked whenever the clock has moved
live_worker         a worker in a thread, on the real clock
harness             `app.testing()`
plugin              pytest fixtures
conformance/        tests of a broker's behaviour, importable for brokers of others
"""
