"""Map and reduce: one job per file of a list that is known only at run time, then one job with all results.

python examples/map_reduce.py
"""

from __future__ import annotations

from collections import Counter

from beside import worker_for

from dray import App

app = App("map_reduce")

SHELF = {
    "one.txt": "the cart hauls the load",
    "two.txt": "the load is heavy",
    "three.txt": "a cart and a load",
}


@app.task
def list_files(pattern: str) -> list[str]:
    return sorted(name for name in SHELF if name.endswith(pattern))


@app.task
def count_words(name: str) -> dict[str, int]:
    return Counter(SHELF[name].split())


@app.task
def add_up(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total.most_common(3))


def main() -> None:
    flow = app.flow("words")
    flow.add(add_up, flow.map(count_words, flow.add(list_files, ".txt")))
    with worker_for(__file__):
        handle = flow.enqueue()
        print("most common:", handle.get(timeout=30))
        print("jobs:", sum(handle.status().counts.values()), handle.status())


if __name__ == "__main__":
    main()
