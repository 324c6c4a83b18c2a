"""Running jobs: one supervisor process, and executor processes that it starts, watches and replaces.

channel.py      what supervisor and executor say to each other
pulse.py        signs of life of an executor, in memory that both see
config.py       what executors and children are told at birth

process.py      the main program of an executor process
executor.py     take, run, settle: the loop of one executor
session.py      its session at the broker: what is unanswered is asked again, what is unsent is kept
listener.py     waits on the broker for it           contact.py   whether the broker answers
watch.py        timeouts, runs that do not stop      reports.py   progress on its way
voice.py        what it tells its supervisor
live.py         one run while it lives
run.py          one run of one job: arguments in, outcome out     failure.py   errors as text
runners.py      where runs take place; on the event loop
threads.py      persistent threads for plain functions
children.py     child processes for jobs that must be killable (`isolate="process"`, suspects)
child.py        the main program of a child process
guard.py        no process outlives who started it
loops.py  logs.py  memory.py  places.py      what both kinds of process need

supervisor.py   starts, watches, replaces, renews, forwards signals; runs no user code
hold.py         leadership: a document that one worker holds for a term
duties.py       what the leader does for all: upkeep and the like
schedules.py    the jobs of cron and interval schedules, as a duty
roster.py       who is at work, as documents in the broker
"""
