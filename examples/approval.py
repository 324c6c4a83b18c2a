"""A person decides: a job waits for an event, for as long as it takes, and holds nothing meanwhile.

python examples/approval.py
"""

from __future__ import annotations

import time

from beside import worker_for

from dray import App, Context, EventTimeout

app = App("approval")


def publish(article: str, by: str) -> str:
    return f"{article}, approved by {by}"


@app.task
async def review(ctx: Context, article: str, patience: str) -> str:
    try:
        decision = await ctx.event("decision", timeout=patience)
    except EventTimeout:
        return f"{article}: nobody decided"
    if not decision["ok"]:
        return f"{article}: declined by {decision['by']}"
    return await ctx.step(publish, article, decision["by"])


def main() -> None:
    good, bad, forgotten = (
        review.enqueue("News", "7d"),
        review.enqueue("Rumours", "7d"),
        review.enqueue("Opinion", "2s"),
    )
    with worker_for(__file__):
        while good.status() != "waiting":
            time.sleep(0.05)
        print("News waits:", good.why().code)
        good.send("decision", {"ok": True, "by": "ann"})
        bad.send("decision", {"ok": False, "by": "bob"}, id="form-17")
        bad.send("decision", {"ok": True, "by": "bob"}, id="form-17")  # pressed twice: has no effect
        for job in (good, bad, forgotten):
            print(job.get(timeout=30))


if __name__ == "__main__":
    main()
