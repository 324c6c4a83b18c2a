"""One run of a job: on the event loop, in a thread, in a child process.

run_state      one run while it lives
outcome        what a returned value, an error or a stop makes of the job; errors as text
meter          measures one run
requests       what a durable run asks of the broker, and its executor carries out
durable_run    the durable part of a run: its log, its operations, suspension
operation      one durable operation; the first of several; changed code
step_operation   steps with their tries, and undos
wait_operations  sleeps, events and child jobs
operations     the operations as `ctx` calls them
replay         runs the call of a stored job in this process, for `dray replay`
perform        runs a job on the event loop, or in the thread that calls it
threads        persistent threads for plain functions
child_main     the main program of a child process, and its messages
child_process  starts a child process, talks to it, notices its end
child_pool     chooses a child for each job; groups of suspects; what the death of a child means
"""
