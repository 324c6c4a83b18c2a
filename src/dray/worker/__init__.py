"""Running jobs: one supervisor process, and executor processes that it starts, watches and replaces.

channel          messages between supervisor, executors and their children, and how they are framed
config           the configuration of each process that a worker starts
log_file         the log file
logs             log lines, and the log of outages of the broker
process          a process that runs user code: its event loop, its memory, the death of its parent
shared_memory    pages shared by supervisor and executors: signs of life, the worker's rate
retrying_broker  a broker whose outages are survived: opening and calls are repeated until it answers
run/             one run of a job: on the event loop, in a thread, in a child process
executor/        an executor process: takes jobs, runs them, settles them
duties/          what one worker at a time does for all: upkeep, schedules, second runs
supervisor/      starts, watches and replaces executors, and renews their sessions; runs no user code
"""
