"""The first process of a worker: starts executors, watches and replaces them.

statistics        the counts of its executors, added up and written to the broker
template          forks executors from a process that has dray imported
executor_process  one executor process: start, messages, signs of life, stop, kill
stalls            detects blocked event loops, and names the task and line that block them
reaper            kills executors that hang, and releases the jobs of dead ones
executor_pool     restarts the executor in each slot when it ends
heartbeats        renews the leases of executors and the worker's document; clock skew
probes            a small HTTP server for health checks and metrics
report            the worker's account of itself: banner, document, readiness, metrics
watchers          background loops: hanging executors, code changes, bursts, profiles, data loss
supervisor        start, signals, stop: the life of a worker
"""
