"""`redis://` and `valkey://`: jobs on a server, for many machines.

A translation of `dray.broker.memory` into Lua scripts; each is an atomic step in one slot of a cluster. A
single server takes the same code. The heads of the files in `lua/` are the key map. Start with broker.

    options        the URL
    errors         errors of servers and sockets, as dray's errors
    keys           all keys, slots and channels
    ids            ids as a queue stores them
    cluster        the known nodes of a cluster and their slots
    connection     one connection to one server, on an event loop
    blocking_connection  connections without an event loop, shared by threads
    scripts        the scripts, built from lua/*.lua
    sentinel       asks sentinels for the primary
    router         sends each call to the node that serves its slot
    server         facts about a server, for `dray doctor` and metrics
    pubsub         wake-ups by publish and subscribe
    core           state that all verbs share: keys, clock, list of queues
    encoding       the stored forms of jobs
    outbox         follow-up work in other slots: messages, the directory of ids
    put            accepts jobs, with ids that clients made up, dependencies and documents
    settle         applies outcomes of runs
    durable        the log and mailbox of durable jobs; counts of the nodes of a flow
    take           hands out jobs; repeated requests
    sessions       renew and release
    read           get, find, queues, documents and events
    read_newest    find with the newest job first
    edit           changes jobs and queues by hand
    hand_over      the take that a sleeper offers, the job that a wake-up brings
    standing_wait  a worker's wait in many queues
    wait           checks for work and news, or sleeps until there is some
    hand_over      the take that a sleeper offers, and the job that a wake-up brings
    repair         repairs of damage and of unfinished steps; audit
    sweep          frees lapsed sessions, buries expired jobs, prunes old records
    broker         the class RedisBroker
"""

from dray.broker.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
