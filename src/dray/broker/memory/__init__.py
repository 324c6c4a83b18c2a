"""`memory://`: the specification, as a program.

Everything a broker does is written here in its plainest form; the other brokers are translations, held to it
by the conformance suite and the differential walk. One process only, nothing outlives it: for tests and for
the simulation.

    broker.py    the verbs; start reading here
    world.py     what is kept, and the moves everything is made of
    line.py      the order of ready jobs, and what holds them back
    accepting.py what becomes of a job that is put
    edits.py     reading, and changes by hand
    waiting.py   what is news to whom
    upkeep.py    what sweep clears away
    audit.py     the invariants
"""

from dray.broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
