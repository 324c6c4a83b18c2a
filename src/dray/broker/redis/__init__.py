"""`redis://` and `valkey://`: jobs on a server, for many machines.

A translation of `dray.broker.memory` into Lua scripts, each an atomic step in one slot of a cluster. A server
that is no cluster is served by the very same code. The heads of the files in `lua/` are the key map.

    broker.py      the verbs; start reading here
    accepting.py   put: ids that clients made up, dependencies, documents
    taking.py      take: sessions and repeated requests
    crossing.py    what a step leaves to do in other slots: the outbox, the directory of ids
    sessions.py    renew, release, and what becomes of sessions that lapse
    reading.py     get, find, queues, events        editing.py   edit
    upkeep.py      sweep                            waiting.py   wait
    mending.py     what is put right after somebody died midway
    bell.py        being woken, by publish and subscribe
    rows.py        the stored forms                 keys.py      every key, slot and channel
    scripts.py     the scripts, put together from lua/*.lua
    router.py      which node a call goes to        wire.py      one connection
    options.py     the URL                          faults.py    what servers report, in dray's words
"""

from dray.broker.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
