"""The parts of an app that operators use.

selection jobs dead  choosing jobs for bulk changes; `app.jobs`; `app.dead`
queues workers       `app.queues`; `app.workers`
events               `app.events`: the feed of what happened
guarantees           `app.guarantees`: durability in force, repairs, losses, clocks
api_keys             `app.keys`: keys and roles of the server, and its audit log
held_job suspects    jobs in the hands of external workers, and their outcomes; those whose holder died
external_session     the session of a stream at the broker
work_news work_loop  what a stream has for its worker; its loop: settle, take, wait
work_stream          jobs pushed to one external worker, its outcomes settled in batches
external             `app.external`: jobs for workers that are not dray's
parts                all of them as attributes of an app, loaded at first use
"""
