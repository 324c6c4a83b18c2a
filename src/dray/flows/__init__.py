"""Flows: jobs that wait for each other and pass on their results.

graph        the stored form of a flow: its nodes, the ids of their jobs, which failure ends it
annotations  whether a result can be the argument of another task
assembly     turns chains, groups, chords and flows into one graph and its jobs
builders     `chain`, `group`, `chord` and `app.flow()`
pages        documents of a flow: its jobs until they are put, a large graph
placement    accepts a flow as a whole or not at all
reading      the nodes of a flow, and how they stand
inputs       the inputs of a node when it starts: whether it runs, and with what
handle       the handle of a flow: result, state, cancel, retry
api          `app.flow()` and `app.flows`
described    a flow described in JSON types
tasks        the built-in tasks: the end of a flow, the items of a map, the stand-in for a job that exists
already
"""
