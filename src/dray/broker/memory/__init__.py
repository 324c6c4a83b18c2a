"""`memory://`: the specification, as a program.

Everything a broker does is written here in its plainest form; the other brokers are translations, held to it
by the conformance suite and the differential walk. One process only, nothing outlives it: for tests and for
the simulation.

    broker   the verbs; start reading here
    entries  a job, a session and a queue, as they are stored
    store    the stored state of a namespace, and the moves of a job
    durable  the log, the mailbox and the suspension of durable jobs
    outbox   delivers messages between jobs: ends, cancels, revivals
    hand_over  gives a job that became ready to a sleeping session
    put      decides about a new job: created, duplicate, or refused
    take     the order of ready jobs, and the limits that hold them back
    settle   applies the outcome of a run
    edit     changes jobs and queues by hand
    read     reads jobs, queues and the feed
    wait     finds news for a waiter; blocks until there is some
    sweep    frees lapsed sessions, buries expired jobs, prunes old records
    repair   repairs damage to the store
    audit    checks the invariants
"""

from dray.broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
