"""A task, a job, a result.

python examples/quickstart.py
"""

from __future__ import annotations

from beside import worker_for

from dray import App

app = App("quickstart")  # jobs live in .dray/dray.db; nothing to install, nothing to start


@app.task
def add(x: int, y: int) -> int:
    return x + y


def main() -> None:
    print("called:", add(2, 3))  # a task stays a plain function
    job = add.enqueue(2, 3)  # returns as soon as the job is safe on disk
    print("enqueued:", job.status())
    with worker_for(__file__):
        print("result:", job.get(timeout=30))
    print("afterwards:", job.status())


if __name__ == "__main__":
    main()
