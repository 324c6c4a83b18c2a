"""A call as data, which can be replayed, cut down and printed.

Some numbers are only known once the calls before have been made. In a script they are relative, so that they
stay meaningful when calls are left out:

- a run number below 0 is counted from the newest run of that job that the reference has handed out: -1 is
  the newest, -2 the one before;
- `request` of a take is 0 for the session's next one, -1 for its last one again, -2 for one before that;
- `position` of a memo below 0 is counted from the end of the log as far as it is known: -1 is the end;
- `expect_version` below 0 is counted from the newest version of the document that the broker has shown.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from dray.policy import Retention

START = 1_700_000_000_000
"""The time at which every walk begins."""


class Op(msgspec.Struct, frozen=True):
    """One call, made `times` times in a row, as a client does that gets no reply.

    The verbs are those of the broker, and four more: `check` compares all that is visible, `wait_take` asks
    whether there is work and then takes, `asleep` makes another call while a session sleeps and offers its
    next take, `refused` makes a call that must be refused and change nothing.
    """

    verb: str
    args: dict[str, Any]
    at: int = START
    times: int = 1
    clock: bool = False
    """Leave `now` to the broker's clock, which shows the same time."""


def op(at: int, verb: str, /, *, times: int = 1, clock: bool = False, **args: Any) -> Op:
    """One line of a script; `at` is in milliseconds since the walk began."""
    return Op(verb, args, START + at, times, clock)


class Script(msgspec.Struct, frozen=True):
    """The calls of a walk, to make it again."""

    ops: tuple[Op, ...]
    retention: Retention = Retention()

    def source(self, names: tuple[str, ...] = ("memory://", "memory://")) -> str:
        """Python that replays the script on the brokers with these URLs."""
        lines = "".join(f"    {show_op(step)},\n" for step in self.ops)
        sides = ", ".join(f"side({name!r})" for name in names)
        return (
            "from walk import *\n"
            "from dray.broker.actions import *\n"
            "from dray.broker.durable import *\n"
            "from dray.broker.verbs import *\n"
            "from dray.job import *\n\n"
            f"script = Script((\n{lines}), {show(self.retention)})\n"
            f"print(replay(script, {sides}))\n"
        )


def show_op(step: Op) -> str:
    flags = {"times": step.times} if step.times != 1 else {}
    if step.clock:
        flags["clock"] = True
    words = [f"{name}={show(value)}" for name, value in (flags | step.args).items()]
    return f"op({', '.join([str(step.at - START), repr(step.verb), *words])})"


def show(value: object) -> str:
    """A value as Python source; structs without fields at their default."""
    if isinstance(value, Op):
        return show_op(value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        said = [
            f"{field.name}={show(got)}"
            for field in fields
            if (got := getattr(value, field.name)) != default_of(field)
        ]
        return f"{type(value).__name__}({', '.join(said)})"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, frozenset):
        return f"frozenset({show(sorted(value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{show(k)}: {show(v)}' for k, v in value.items())}}}"
    return repr(value)


def default_of(field: msgspec.structs.FieldInfo) -> object:
    """The default of a field; `NODEFAULT` if it has none."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
