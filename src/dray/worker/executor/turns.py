"""Chooses the queues that an executor asks for jobs, and whose turn it is.

A queue that stands alone at its place in the list is asked with every take, in the order of the list. Queues
that share a place (those of a pattern, or those that the app's tasks name) take turns: a few of them are
asked per take, each for a share of the wanted jobs, and only if known to have work. A wait at the broker
tells which have work; while the executor is too busy to wait, a look from time to time does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from dray.app import App
from dray.broker.verbs import Broker, Filter, Interest, Wake
from dray.errors import BrokerError
from dray.job import Taken
from dray.settings.queue_choice import DEDICATED, DEFAULT, Stage, is_pattern, stages

REFRESH: Final = 1.0
"""Seconds between looks for new queues, if the setting has patterns."""
REFRESH_OWN: Final = 5.0
"""Seconds between looks for dedicated queues, if the app's tasks name the queues."""
LOOK: Final = 0.1
"""Seconds between looks at queues that had no work, while others keep the executor busy; ..."""
LOOK_EACH: Final = 0.001
"""... and at least so many for each such queue."""
OFFERED: Final = 4
"""Queues that the next take is offered to; with more queues, only that which gave a job last."""
LEAST_SHARE: Final = 8
"""A turn is at least 1/8 of the executor's slots: many queues must not mean many small takes."""

log = logging.getLogger("dray.worker")


def queues_of(app: App) -> dict[str, bool]:
    """The queues that an app's tasks and schedules name, and `default`; true for dedicated ones."""
    found = {DEFAULT: False}
    for task in app.tasks.values():
        queue = task.options.queue or DEFAULT
        found[queue] = found.get(queue, False) or task.options.dedicated
    for declaration in app.declarations.values():
        found.setdefault(app.job_builder.queue_of(declaration.call), False)
    return found


class TakeRequest(NamedTuple):
    """The next take: the queues to ask, for how many jobs, and for how many of each if all take turns."""

    queues: tuple[str, ...]
    want: int
    turns: tuple[str, ...] = ()
    """Those of the queues whose turn it is."""
    share: int | None = None


class Turns:
    """The queues of one executor. `listed` is the setting `queues`; if empty, the app's `own` are served."""

    def __init__(self, listed: tuple[str, ...], own: Mapping[str, bool], slots: int) -> None:
        self._listed, self.slots = listed, slots
        self._own = own
        self.dedicated: frozenset[str] = frozenset(queue for queue, own in self._own.items() if own)
        self._declared = self.dedicated
        self._known: Sequence[str] = ()
        self._stages: list[Stage] = []
        self._hot: list[dict[str, None]] = []
        """By stage: the queues known to have work, in the order of their turns."""
        self._last = TakeRequest((), 0)
        self._gave = ""
        self._looked_at = -math.inf
        self._watching: asyncio.Task[None] | None = None
        self._arrange()

    @property
    def _least(self) -> int:
        return max(1, self.slots // LEAST_SHARE)

    @property
    def entries(self) -> tuple[str, ...]:
        """The served queues, as names and patterns."""
        return self._listed or tuple(queue for queue in self._own if queue not in self.dedicated)

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue that is served now."""
        return tuple(queue for stage in self._stages for queue in stage)

    @property
    def only_queue(self) -> tuple[str, ...]:
        """The queue that is asked with every take, if no other is served."""
        return self._stages[0] if len(self._stages) == 1 and len(self._stages[0]) == 1 else ()

    def _arrange(self) -> None:
        old = {queue for hot in self._hot for queue in hot}
        self._stages = stages(self._listed, self.dedicated, self._known) if self._listed else [self.entries]
        self._hot = [dict.fromkeys(queue for queue in stage if queue in old) for stage in self._stages]

    # which queues there are

    async def begin(self, broker: Broker, changed: Callable[[], None]) -> None:
        """Read the queues now and from time to time; call `changed` now, and when they change."""
        if self._watching is None:
            names_only = bool(self._listed) and not any(map(is_pattern, self._listed))
            if not names_only:
                await self.refresh(broker)
                self._watching = asyncio.get_running_loop().create_task(self._watch(broker, changed))
            changed()

    def end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self, broker: Broker, changed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(REFRESH if self._listed else REFRESH_OWN)
            try:
                if await self.refresh(broker):
                    changed()
            except (BrokerError, OSError):
                continue  # the loop, which takes, logs it
            except Exception:
                log.exception("the queues could not be read")

    async def refresh(self, broker: Broker) -> bool:
        """Read the queues and which are dedicated; true if the served ones have changed."""
        dedicated = self._declared | {doc.name for doc in await broker.docs(DEDICATED)}
        known = await broker.queue_names() if self._listed else ()
        return self.serve(known, dedicated)

    def serve(self, known: Sequence[str], dedicated: Collection[str]) -> bool:
        before = (self._stages, self.dedicated)
        self._known, self.dedicated = known, frozenset(dedicated)
        self._arrange()
        return before != (self._stages, self.dedicated)

    def heard(self, wake: Wake) -> None:
        """Note the queues that have work, from the reply of a `wait`."""
        if wake.work:
            self._note(wake.queues or self.queues)

    def _note(self, queues: Iterable[str]) -> None:
        wanted = set(queues)
        for stage, hot in zip(self._stages, self._hot, strict=True):
            if len(stage) > 1:
                hot.update(dict.fromkeys(queue for queue in stage if queue in wanted and queue not in hot))

    def cold(self) -> tuple[str, ...]:
        """The queues that take turns and are not known to have work."""
        found: tuple[str, ...] = ()
        for stage, hot in zip(self._stages, self._hot, strict=True):
            if len(stage) > 1:
                found += tuple([queue for queue in stage if queue not in hot])
        return found

    async def look(self, broker: Broker, filter: Filter, session: str, now: float) -> bool:
        """Ask the broker which of the cold queues have work, if the last look was long enough ago."""
        if now < self._looked_at + LOOK:
            return False
        cold = self.cold()
        if not cold or now < self._looked_at + LOOK_EACH * len(cold):
            return False
        self._looked_at = now
        self.heard(await broker.wait(Interest(queues=cold, filter=filter, session=session), 0))
        return True

    # taking

    def next_request(self, want: int, repeats: bool) -> TakeRequest:
        """The next take; one that was not answered is repeated as it was."""
        if not repeats:
            self._last = self._next(want)
        return self._last

    def _next(self, want: int) -> TakeRequest:
        queues: list[str] = []
        for stage, hot in zip(self._stages, self._hot, strict=True):
            if len(stage) == 1:
                queues += stage
            elif hot and queues:  # a broker asks those that are listed before the turn's queue first
                turn = next(iter(hot))
                share = max(self._least, -(-want // len(hot)))
                return TakeRequest((*queues, turn), min(want, share), (turn,))
            elif hot:
                turns = tuple(islice(hot, max(1, want // self._least)))
                share = max(1, want // len(turns))
                return TakeRequest(turns, min(want, share * len(turns)), turns, share)
        return TakeRequest(tuple(queues), want)

    def offered(self, free: int) -> tuple[str, ...]:
        """The queues that may answer the next take in advance, one job each."""
        queues = self.queues if len(self._stages) <= OFFERED else ()
        if 0 < len(queues) <= min(free, OFFERED):
            return queues
        return (self._gave,) if free > 0 and any(self._gave in stage for stage in self._stages) else ()

    def gave(self, queue: str) -> None:
        """A queue gave a job."""
        self._gave = queue

    def took(self, request: TakeRequest, taken: Sequence[Taken]) -> bool:
        """Note the result of a take; true if there may be more jobs."""
        if taken:
            self._gave = taken[-1].job.queue
        full = len(taken) == request.want > 0
        if request.share is not None:
            given = Counter(one.job.queue for one in taken)
            for queue in request.turns:
                self._had_turn(queue, has_more=given[queue] == request.share)
        elif request.turns and not (full and taken[-1].job.queue != request.turns[0]):
            self._had_turn(request.turns[0], has_more=full)
        return (full and bool(request.queues)) or any(self._hot)

    def passed(self, request: TakeRequest) -> None:
        """Note a take that asked for some tasks only: the queues had their turn, and may have more."""
        for queue in request.turns:
            self._had_turn(queue, has_more=True)

    def _had_turn(self, queue: str, has_more: bool) -> None:
        for hot in self._hot:
            if queue in hot:
                del hot[queue]
                if has_more:
                    hot[queue] = None
