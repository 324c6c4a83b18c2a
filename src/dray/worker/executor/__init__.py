"""An executor process: takes jobs, runs them, settles them.

executor_main   the main program of the process
executor        the loop: settle, take, run
memo_batches    memos of its runs, many in one call
runs            its runs: start, stop, outcomes; when it retires
inputs          reads the results that runs need before they start
session         its session at the broker; progress of its runs
turns           which queues it asks for jobs, and whose turn it is
listener        waits on the broker for work and news
hand_over       offers the next take while it sleeps, starts what a wake-up brings
slots           how many more jobs it can start now: on the loop, in threads and children
adaptive_limit  the rule that finds how many jobs to run at a time
deadlines       timeouts and deadlines, runs that do not stop, the heartbeat
accounting      statistics of runs by task
run_log         log lines for ended runs
sampler         profiles of the process
"""
