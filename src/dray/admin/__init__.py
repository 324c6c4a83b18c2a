"""The parts of an app that operators use.

selection jobs dead  choosing jobs for bulk changes; `app.jobs`; `app.dead`
queues workers       `app.queues`; `app.workers`
events               `app.events`: the feed of what happened
api_keys             `app.keys`: keys and roles of the server, and its audit log
external             `app.external`: jobs for workers that are not dray's
parts                all of them as attributes of an app, loaded at first use
"""
