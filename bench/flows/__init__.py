"""Flows beside Celery canvas and BullMQ flows: `python -m bench.flows`.

subject_dray.py    a chord and a chain with dray
subject_celery.py  the same with Celery canvas
subject_bullmq.cjs the same with BullMQ flows: a parent with children, and a parent in a parent
run.py             one fresh server for each subject and round, in turns; the best round counts

Each subject enqueues from a client that waits for the result, with one worker process at 100 jobs at a time
(Celery: one prefork process per core), and says how long that took. Tasks do nothing.
"""
