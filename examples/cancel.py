"""A long job: it says how far it is, and stops when it is asked to.

python examples/cancel.py
"""

from __future__ import annotations

import time

from beside import worker_for

from dray import App, Context, JobCancelled

app = App("cancel")


@app.task
def render(ctx: Context, frames: int) -> int:
    for frame in range(frames):
        ctx.check()  # raises here once somebody cancels the job
        ctx.progress(frame + 1, frames, note="rendering")
        time.sleep(0.05)
    return frames


def main() -> None:
    never = render.using(delay="1h").enqueue(10)
    print("cancelled before its time:", never.cancel(), never.status())

    long = render.enqueue(10_000)
    with worker_for(__file__):
        while (progress := long.info().progress) is None:
            time.sleep(0.05)
        print("under way:", progress.note, f"{progress.total:g} frames")
        long.cancel("nobody wants to see it")
        try:
            long.get(timeout=30)
        except JobCancelled:
            print("cancelled while it ran:", long.info().reason)


if __name__ == "__main__":
    main()
