"""Uses the API through what openapi-python-client makes of its document: submit, wait, cancel.

Run as a program, where the generated package `dray_client` can be imported.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main(url: str, key: str) -> None:
    made = import_module("dray_client")
    models: Any = import_module("dray_client.models")
    client = made.AuthenticatedClient(base_url=url, token=key, timeout=60)
    submit = import_module("dray_client.api.jobs.post_jobs")
    result = import_module("dray_client.api.jobs.get_jobs_id_result")
    cancel = import_module("dray_client.api.jobs.delete_jobs_id_cancel")
    show = import_module("dray_client.api.jobs.get_jobs_id")

    kwargs = models.JobInKwargs.from_dict({"a": 2, "b": 3})
    job = submit.sync(client=client, body=models.JobIn(task="add", kwargs=kwargs, tags=["python"]))
    print(job.id, flush=True)
    ended = result.sync(job.id, client=client, wait=60)
    print(json.dumps({"status": ended.status, "result": ended.result}))

    late = submit.sync(client=client, body=models.JobIn(task="add", args=[1], delay=3600))
    body = models.CancelIn(reason="not wanted")
    changed = cancel.sync(late.id, client=client, body=body).changed
    shown = show.sync(late.id, client=client)
    print(json.dumps({"changed": changed, "status": shown.status, "reason": shown.reason}))

    refused = submit.sync(client=client, body=models.JobIn(task="no-such-task"))
    print(json.dumps(refused.error.field))


if __name__ == "__main__":
    main(*sys.argv[1:])
