"""One tenant enqueues thousands of jobs, another a single one: they take turns.

python examples/fair_tenants.py
"""

from __future__ import annotations

from beside import worker_for

from dray import App

app = App("fair_tenants")


@app.task
async def export(tenant: str, page: int) -> str:
    return f"{tenant} {page}"


def main() -> None:
    flood = export.using(group="big")
    many = app.enqueue_many([flood.call("big", page) for page in range(500)])
    single = export.using(group="small").enqueue("small", 1)

    # No tenant may have more than 4 jobs running, so that none of them fills all workers.
    app.queues.limit("default", group_running=4)
    with worker_for(__file__):
        print("it is done:", single.get(timeout=30))
    started = single.info().started_at
    earlier = [job for job in many if (at := job.info().started_at) and started and at < started]
    print("it waited for fewer than ten of the big tenant's 500 jobs:", len(earlier) < 10)


if __name__ == "__main__":
    main()
