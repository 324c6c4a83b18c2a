"""Profiles of executors: sampled stacks, requested and delivered through the broker.

A request is a small document for the worker. Its supervisor finds it within seconds and passes it to the
executor, which samples its own threads and writes the profile as another document.
"""

from __future__ import annotations

import secrets
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from dray.broker.verbs import Broker
from dray.documents.reading import read_doc
from dray.documents.worker_registry import WorkerInfo
from dray.errors import InvalidInput

ASKED: Final = "profile-ask"
"""The kind of a request; its name is the worker's id."""
SEEN: Final = "profile"
"""The kind of a profile; its name is that of the request."""
SECONDS_MAX: Final = 300
KEEP: Final = 600_000
"""Milliseconds for which a profile is kept."""
SIZE_MAX: Final = 900_000
"""Bytes of a stored profile; a larger one loses its rarest stacks."""
WIDTH: Final = 1200
ROW: Final = 17
_NARROW: Final = 0.3


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    executor: int
    """Its number."""
    seconds: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks of one executor process, each with the number of samples that show it."""

    worker: str
    executor: int
    pid: int
    seconds: float
    samples: int
    """How often all threads were sampled."""
    frames: list[str]
    """`function (file:line)`, each once."""
    stacks: list[tuple[list[int], int]]
    """Outermost frame first, as indexes into `frames`; the first is the thread. Idle threads are left out."""
    left_out: int = 0
    """Samples of rare stacks that are left out."""

    def collapsed(self) -> str:
        """One line per stack, `outer;inner 12`, as tools for flame graphs read it."""
        lines = [
            f"{';'.join(self.frames[n].replace(';', ',') for n in stack)} {count}"
            for stack, count in self.stacks
        ]
        return "\n".join(lines)

    def text(self, most: int = 25) -> str:
        """The functions with the most samples, by themselves and with all they call."""
        total = sum(count for _, count in self.stacks)
        head = (
            f"executor {self.executor} (pid {self.pid}) of {self.worker}: {self.seconds:g} s,"
            f" {self.samples} samples"
        )
        if not total:
            return f"{head}: it did nothing"
        own, all = Counter[int](), Counter[int]()
        for stack, count in self.stacks:
            own[stack[-1]] += count
            for frame in set(stack[1:]):
                all[frame] += count
        lines = [head, "  SELF   TOTAL  FUNCTION"]
        for frame, count in sorted(all.items(), key=lambda one: (-own[one[0]], -one[1]))[:most]:
            lines.append(f"{own[frame] / total:6.1%}  {count / total:6.1%}  {self.frames[frame]}")
        if self.left_out:
            lines.append(f"(rare stacks that are left out were seen {self.left_out} times)")
        return "\n".join(lines)

    def svg(self) -> str:
        """A flame graph: the width is the number of samples; functions call what is drawn below them."""
        root = _Node()
        for stack, count in self.stacks:
            root.add(stack, count)
        rows: list[str] = []
        depth = root.draw(self.frames, rows, 0.0, 0, WIDTH / max(1, root.count), max(1, root.count))
        height = (depth + 2) * ROW
        title = _escape(
            f"{self.worker}, executor {self.executor}: {self.seconds:g} s, {self.samples} samples"
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">\n'
            f'<text x="4" y="12">{title}</text>\n' + "\n".join(rows) + "\n</svg>\n"
        )


class _Node:
    """A function below its callers."""

    def __init__(self) -> None:
        self.count = 0
        self.below: dict[int, _Node] = {}

    def add(self, stack: list[int], count: int) -> None:
        node = self
        node.count += count
        for frame in stack:
            node = node.below.setdefault(frame, _Node())
            node.count += count

    def draw(
        self, frames: list[str], rows: list[str], left: float, depth: int, unit: float, total: int
    ) -> int:
        """Draw the calls below this one; returns their depth."""
        deepest = depth
        for frame, node in sorted(self.below.items(), key=lambda one: frames[one[0]]):
            width = node.count * unit
            if width >= _NARROW:
                rows.append(_box(frames[frame], node.count / total, left, (depth + 1) * ROW, width))
                deepest = max(deepest, node.draw(frames, rows, left, depth + 1, unit, total))
            left += width
        return deepest


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _box(name: str, share: float, x: float, y: int, width: float) -> str:
    hue = zlib.crc32(name.encode()) % 50
    label = _escape(name[: int(width / 7)]) if width > 30 else ""
    return (
        f'<g><title>{_escape(name)}: {share:.1%}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{ROW - 1}" fill="hsl({hue},80%,65%)"/>'
        f'<text x="{x + 3:.1f}" y="{y + 12}">{label}</text></g>'
    )


def executor_of(workers: Sequence[WorkerInfo], worker: str, executor: int | None) -> int:
    """The number of the requested executor; None requests the busiest."""
    info = next((one for one in workers if one.id == worker), None)
    if info is None:
        known = ", ".join(one.id for one in workers) or "none is at work"
        raise InvalidInput("worker", worker, f"the id of a worker is allowed: {known}")
    numbers = {one.number: one.running for one in info.executors if one.session is not None}
    if executor is None and numbers:
        return max(numbers, key=lambda number: (numbers[number], -number))
    if executor is None or executor not in numbers:
        known = ", ".join(map(str, numbers)) or "it has none"
        raise InvalidInput("executor", executor, f"the number of an executor is allowed: {known}")
    return executor


_encode = msgspec.msgpack.Encoder().encode
_read_request = msgspec.msgpack.Decoder(ProfileRequest).decode
_read_profile = msgspec.msgpack.Decoder(Profile).decode


async def request_profile(broker: Broker, worker: str, executor: int, seconds: float) -> ProfileRequest:
    request = ProfileRequest(name=f"{secrets.randbits(62) + 1:x}", executor=executor, seconds=seconds)
    await broker.doc(ASKED, worker, _encode(request), ttl=60_000)
    return request


async def next_request(broker: Broker, worker: str) -> ProfileRequest | None:
    """The request for a worker, which is deleted by reading it."""
    doc = (await broker.doc(ASKED, worker)).doc
    if doc is None or not (await broker.doc(ASKED, worker, None, expect_version=doc.version)).written:
        return None
    return read_doc(_read_request, doc)


async def write_profile(broker: Broker, name: str, profile: Profile) -> None:
    packed = zlib.compress(_encode(profile))
    while len(packed) > SIZE_MAX:
        ordered = sorted(profile.stacks, key=lambda one: -one[1])
        kept, rest = ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]
        left_out = profile.left_out + sum(count for _, count in rest)
        profile = msgspec.structs.replace(profile, stacks=kept, left_out=left_out)
        packed = zlib.compress(_encode(profile))
    await broker.doc(SEEN, name, packed, ttl=KEEP)


async def read_profile(broker: Broker, name: str) -> Profile | None:
    doc = (await broker.doc(SEEN, name)).doc
    return None if doc is None else _read_profile(zlib.decompress(doc.value))
