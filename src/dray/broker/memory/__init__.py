"""`memory://`: the specification, as a program.

Everything a broker does is written here in its plainest form; the other brokers are translations, held to it
by the conformance suite and the differential walk. One process only, nothing outlives it: for tests and for
the simulation.

    broker.py    the verbs; start reading here
    world.py     what is kept, and the moves everything is made of
    line.py      the order of ready jobs, and what holds them back
    edits.py     changes by hand
    audit.py     the invariants
"""

from dray.broker.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
