"""Measures one run: its duration, and the CPU time of its thread.

For a coroutine that is the time inside its steps. CPU time of threads and tasks that a job starts itself is
not seen. A run in a child process is measured there, with its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

EVERY_STEP: Final = 512
"""The first steps of a coroutine are all measured; then every `SKIPS`th stands for its neighbours."""
SKIPS: Final = 16

Clock = Callable[[], float]


class Meter:
    """Measures one run. All times in seconds."""

    __slots__ = (
        "_cpu_clock",
        "_mark",
        "_scale",
        "_steps",
        "began",
        "clock",
        "cpu",
        "memory",
        "took",
        "waited",
    )

    def __init__(self, clock: Clock, cpu_clock: Clock, waited: float | None) -> None:
        self.clock, self._cpu_clock, self.waited = clock, cpu_clock, waited
        self.began = clock()
        self.took: float | None = None
        """Set where a thread or child measured it; else it lasts until its executor hears of its end."""
        self.cpu = 0.0
        self.memory = 0
        self._steps = 0
        self._mark: float | None = None
        self._scale = 1

    def around(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """The same function, measured: for calls in a thread."""

        def measured() -> Any:
            if not self._steps:
                self.began = self.clock()
            mark = self._cpu_clock()
            try:
                return act()
            finally:
                self.cpu += self._cpu_clock() - mark
                if not self._steps:
                    self.took = self.clock() - self.began

        return measured

    def step_into(self) -> None:
        steps = self._steps = self._steps + 1
        if steps == 1:
            self.began = self.clock()
        if steps <= EVERY_STEP:
            self._mark = self._cpu_clock()
        elif steps % SKIPS == 0:
            self._mark, self._scale = self._cpu_clock(), SKIPS

    def step_out(self) -> None:
        """The run returned to the event loop, or ended within its last step."""
        if self._mark is not None:
            self.cpu += (self._cpu_clock() - self._mark) * self._scale
            self._mark = None

    def end(self) -> float:
        """The duration of the run, which has ended."""
        self.step_out()
        return self.clock() - self.began if self.took is None else self.took


class MeteredSteps(Coroutine[Any, Any, None]):
    """A coroutine whose steps are measured."""

    __slots__ = ("_inner", "_meter")

    def __init__(self, inner: Coroutine[Any, Any, None], meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def send(self, value: Any) -> Any:
        meter = self._meter
        meter.step_into()
        try:
            return self._inner.send(value)
        finally:
            meter.step_out()

    def throw(self, *error: Any) -> Any:
        meter = self._meter
        meter.step_into()
        try:
            return self._inner.throw(*error)
        finally:
            meter.step_out()

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._inner.__await__()
