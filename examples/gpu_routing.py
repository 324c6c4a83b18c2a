"""Three machines: one with a GPU, two without. Queues say what a job needs, workers what they have.

python examples/gpu_routing.py
"""

from __future__ import annotations

import os
from contextlib import ExitStack

from beside import worker_for

import dray
from dray import App

app = App("gpu_routing")


def machine() -> str:
    return os.environ.get("MACHINE", "nowhere")


@app.task(queue="gpu", dedicated=True)  # a worker without -Q, or with -Q all, leaves it alone
def train(model: str) -> str:
    return machine()


@app.task(queue="cpu")
def resize(picture: int) -> str:
    return machine()


@app.task(queue="any")
def mail(to: str) -> str:
    return machine()


def main() -> None:
    nobody = train.enqueue("too early")
    print("before any worker runs:", nobody.why().code)
    with ExitStack() as machines:
        # In a data centre: `dray worker -Q gpu,any` on the one, `dray worker -Q cpu,any` on the others.
        # The queue named first is served first: the GPU does not send mail while models wait for it.
        machines.enter_context(worker_for(__file__, "-Q", "gpu,any", MACHINE="gpu-1"))
        machines.enter_context(worker_for(__file__, "-Q", "cpu,any", MACHINE="cpu-1"))
        machines.enter_context(worker_for(__file__, "-Q", "cpu,any", MACHINE="cpu-2"))
        models = [train.enqueue(f"model {n}") for n in range(5)]
        pictures = [resize.enqueue(n) for n in range(5)]
        letters = [mail.enqueue(f"{n}@example.org") for n in range(5)]
        print("models were trained on:", *sorted(set(dray.gather([nobody, *models], timeout=30))))
        resized = set(dray.gather(pictures, timeout=30))
        print("pictures were resized on machines without a GPU:", resized <= {"cpu-1", "cpu-2"})
        sent = set(dray.gather(letters, timeout=30))
        print("mail went out from any of them:", sent <= {"gpu-1", "cpu-1", "cpu-2"})


if __name__ == "__main__":
    main()
