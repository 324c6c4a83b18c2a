"""The embedded broker: how much of a bare loop of the same SQL its verbs reach, and whether they keep it.

store.py       database files with so many jobs pending: made once, copied for each round
script.py      what a verb executes, recorded; played again by dray and by a bare loop
cases.py       the rows of the table
stage.py       where a case is measured: two files, one for dray and one for the bare loop
run.py         the whole run
tables.py      what it came to
processes.py   several processes on one file
waking.py      from enqueue to start across processes, and what an idle waiter costs
plan.py        how much of everything in a full, a quick and a tiny run
profiling.py   where the time of a verb goes
"""
