"""A simulation of the whole system: virtual time, a seeded order, a faulty network, and a suspicious ledger.

    python -m dray.testing.sim --seconds 60 --processes 2
    python -m dray.testing.sim --seed 7 --trace

One seed is one run: producers, workers, sweepers, operators, watchers, readers, leaders and schedulers talk
to one broker for a minute or so of virtual time. Requests and replies get lost, calls arrive twice or much
later, processes are killed, frozen or cut off, and verbs end between their steps. Then the faults stop,
everything must come to its end, and all slots and keys must be free. The same seed gives the same run, on any
machine.

    loop.py        the virtual event loop; processes that can be killed or frozen
    plan.py        what a seed stands for, and how to make a plan smaller
    transport.py   the faulty way to the broker (a `Broker` itself)
    watched.py     the reference broker with a window: every step is seen
    orders.py      which jobs are put, and how they behave
    workers.py     model executors           clients.py   everyone else
    ledger.py      the book kept at the broker's door: what each verb did and answered
    moves.py       each event held against what may happen to a job
    bounds.py      pauses, limits, rates     lives.py     what is known of jobs, keys, documents
    stage.py       one run from start to reckoning
    explorer.py    `simulate`, `explore`, `shrink`

The invariants, by the names reported: `lost` `ids` `keys` `repeats` (acceptance); `fencing` `runs` `outcomes`
`completions` `sessions` (validity); `max_running` `rate` `bounds` `pause` `slots` (limits); `priority`
`order` `due` `ttl` `take` (order); `dependencies` `cancelled` `transitions` `feed` `audit` `documents`
`watch` `reasons` `stuck` `deadlock` `raised` `actor`.

To put a real executor on this stage: it is any asyncio program that gets a `Broker`. In `Stage._add_worker`,
return its main coroutine from `role(process, broker)`; `broker` is a `Transport` of that process. Give it the
`clock` where it wants milliseconds, `loop.time` is virtual already. Crashing, freezing and cutting off need
nothing from it. Threads and child processes are not simulated: inject an in-loop runner for them. It must
not iterate over sets of its own objects (tasks and futures hash by number here, so sets of those are fine),
and should draw random numbers from a generator it is given.
"""

from dray.testing.sim.explorer import Found, Report, explore, shrink, simulate
from dray.testing.sim.lives import Violation
from dray.testing.sim.loop import Deadlock, Process, VirtualLoop, run
from dray.testing.sim.parts import Parts
from dray.testing.sim.plan import Plan, draw

__all__ = [
    "Deadlock",
    "Found",
    "Parts",
    "Plan",
    "Process",
    "Report",
    "Violation",
    "VirtualLoop",
    "draw",
    "explore",
    "run",
    "shrink",
    "simulate",
]
