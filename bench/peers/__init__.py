"""dray beside other task queues, and beside the bare loop of its own design: `python -m bench.peers`.

plan.py        how much of everything
lineup.py      who takes part: environment, pinned versions, worker commands, settings and why
pins/          exact versions of everything that is installed, one file per environment
envs.py        makes the environments, once
servers.py     a fresh valkey-server or redis-server for every session
books.py       which jobs ran, how often and when: read from outside, the same way for everybody
crew.py        the processes of a session: driver and worker tree, frozen while queues are filled
session.py     one subject, one round: every measure on one fresh server
inside.py      the driver, which runs inside a subject's environment (standard library only)
subjects/      one small file per subject: its tasks, and how it enqueues
run.py         rounds of sessions, interleaved
alone.py       dray by itself: depth, payload, executors
figures.py     what was measured
goals.py       the goals, met or missed
summary.py     a run in short, as a table and in words
tables.py      Markdown and JSON
plots.py       SVG
pages.py       docs/performance.md and README.md, from a full run

How a drain is measured: the worker is started and warmed up, frozen (SIGSTOP), the queue is filled, the
worker goes on. The time runs from the first start to the last end that the jobs themselves wrote down, and
each job is checked to have run exactly once.
"""
