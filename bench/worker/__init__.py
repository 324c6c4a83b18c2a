"""The API and the worker on the embedded broker: `python -m bench.worker`.

plan.py        how much of everything
app.py         the tasks, all of which do nothing
drains.py      real workers against a bare loop of the same SQL
enqueues.py    `enqueue` against a bare insert and commit
stages.py      where a job's CPU time goes: take, decode, run, settle
footing.py     what importing costs, and what an idle worker does
tables.py      Markdown and JSON
"""
