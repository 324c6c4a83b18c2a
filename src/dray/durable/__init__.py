"""The log of a durable job: what its entries are, and what a run may conclude from them. No I/O.

entries     the entries of a log, as bytes and back
identity    names of operations, digests of arguments, ids of children
references  undo functions and errors as text that another process can resolve
copying     the part of a log that a rerun from a step begins with
journal     the log while a run replays it: what is remembered, what is new, what has changed
calls       the operations as a task sees them
direct      the operations of a task that is called directly
steps       the log as a list of steps for people
"""
