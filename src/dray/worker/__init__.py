"""Running jobs: one supervisor process, and executor processes that it starts, watches and replaces.

    channel.py      what supervisor and executor say to each other
    pulse.py        signs of life of an executor, in memory that both see
    run.py          one run of one job: arguments in, outcome out
    threads.py      persistent threads for plain functions
    child.py        child processes for jobs that must be killable (`isolate="process"`, suspects)
    executor.py     take, run, settle: the loop of one executor
    process.py      the main program of an executor process
    supervisor.py   starts, watches, replaces, renews, forwards signals; runs no user code
    duties.py       upkeep that any worker does and one at a time suffices
    roster.py       who is at work, as documents in the broker
"""
