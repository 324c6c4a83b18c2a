"""A nightly load: several sources side by side, one of them broken; a report in any case; then a retry.

python examples/nightly_etl.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

from beside import worker_for

from dray import App, JobFailed, Reject

app = App("nightly_etl")
MENDED = Path(gettempdir()) / "dray-nightly-etl-mended"
"""There once the broken source is mended."""


@app.task(retries=0)
def extract(source: str) -> list[int]:
    if source == "crm" and not MENDED.exists():
        raise Reject("crm does not answer")
    return [len(source), 10]


@app.task
def transform(rows: list[int], factor: int) -> int:
    return sum(rows) * factor


@app.task
def load(sums: list[int]) -> int:
    return sum(sums)


@app.task
def report(loaded: int | JobFailed) -> str:
    return f"failed, {loaded.type}" if isinstance(loaded, JobFailed) else f"loaded {loaded}"


def main() -> None:
    flow = app.flow("nightly", key="nightly:2026-11-18")
    sums = [flow.add(transform, flow.add(extract, source), 2) for source in ("shop", "crm", "web")]
    loaded = flow.add(load, sums)
    flow.add(report, loaded, when="done")
    try:
        with worker_for(__file__):
            handle = flow.enqueue()
            try:
                handle.get(timeout=30)
            except JobFailed as error:
                print("failed:", error.message)
            nodes = {node.name: node.id for node in handle.info().nodes}
            print("report:", app.job(nodes["report"]).get(timeout=30))
            print("not loaded:", [node.name for node in handle.info().nodes if node.status != "succeeded"])
            MENDED.touch()
            print("retried:", handle.retry())
            handle.get(timeout=30)
            print("loaded after the retry:", app.job(nodes["load"]).get(timeout=30))
    finally:
        MENDED.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
