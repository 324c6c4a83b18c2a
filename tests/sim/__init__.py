"""A simulation of the whole system: virtual time, a seeded order, a faulty network, and a suspicious ledger.

    python -m sim --seconds 60 --processes 2
    python -m sim --seed 7 --trace

One seed is one run: for a minute or so of virtual time, producers enqueue through a real `App`, real
executors take, run and settle, watchers wait in real `job.aget()`, `agather` and `aas_completed`, the real
duties sweep, and operators, readers, leaders and schedulers talk to the same broker. Requests and replies get
lost, calls arrive twice or much later, processes are killed, frozen or cut off, and verbs end between their
steps. Then the faults stop, everything must come to its end, each executor must fill all its slots and stop
all its runs when told, and all slots and keys must be free. The same seed gives the same run, on any machine.

    loop.py        the virtual event loop; processes that can be killed or frozen
    plan.py        what a seed stands for, and how to make a plan smaller
    parts.py       what is put to the test: the program's classes, or ones with a bug
    transport.py   the faulty way to the broker (a `Broker` itself)
    watched.py     the reference broker with a window: every step is seen
    orders.py      which jobs are put            script.py    how they behave: the app and its tasks
    callers.py     producers and watchers        clients.py   those who talk to the broker directly
    worker.py      an executor, and its supervisor in a process beside it
    stand_ins.py   threads and child processes, as programs on the loop
    ledger.py      the book kept at the broker's door: what each verb did and answered
    moves.py       each event held against what may happen to a job
    bounds.py      pauses, limits, rates         lives.py     what is known of jobs, keys, documents
    turns.py       whether groups take turns     hand_overs.py   who is given a job in advance
    overseer.py    the eye on one executor: its calls, its replies, its runs
    stage.py       one run from start to reckoning
    explorer.py    `simulate`, `explore`, `shrink`
    calendar.py    a day of schedules, with the same loop and network and another reckoning
    flows.py       flows of all forms, with the same loop, a network of its own and another reckoning

The invariants, by the names reported. Of the broker: `lost` `ids` `keys` `repeats` (acceptance); `fencing`
`runs` `outcomes` `completions` `sessions` (validity); `max_running` `rate` `bounds` `pause` `slots` (limits);
`priority` `order` `turns` `due` `ttl` `take` `hand_over` (order); `budget` (second runs of slow jobs);
`dependencies` `cancelled` `transitions` `feed` `audit` `documents` `reasons` `stuck` `deadlock` `raised`
`actor`. Of an executor: `concurrency` (never more runs than slots, less those that wait), `slots` (none is
lost), `told` (who is to stop is told at once, and hears of it within a second), `runs` (what is taken is
begun once, or given back), `outcomes` (one for each run, and the right one), `unsettled` (sent until it is
answered), `repeats` (a take without an answer keeps its number), `hand_over` (an offered take is repeated at
every queue before the next number), `sessions` (one that is lost is not used, and its runs stop), `stopping`
(takes nothing more), `progress` (not of a run that is void). Of a client: `watch` (a waiter hears the end,
soon and truly), `lost` and `ids` (what enqueue returned is there).

What is real: broker, executor with session, listener, watch, reports and judge, runs on the loop, heartbeats
and duties, app, client, handles. Stand-ins: threads, child processes, the rest of the supervisor. A class in
which something is done wrong takes its place by `simulate(seed, Parts(executor=...))`.

Whoever adds to it: code on this loop must not iterate over sets of its own objects (tasks and futures hash by
number here, so sets of those are fine), and draws random numbers from a generator it is given.
"""

from sim.explorer import Found, Report, explore, shrink, simulate
from sim.lives import Violation
from sim.loop import Deadlock, Process, VirtualLoop, run
from sim.parts import Parts
from sim.plan import Plan, draw

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
