"""Whether the broker can be reached: told once when it is lost and once when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

FIRST: Final = 0.05
LONGEST: Final = 2.0

log = logging.getLogger("dray.worker")


class Contact:
    def __init__(self, who: str, time: Callable[[], float], random: Callable[[], float]) -> None:
        self._who, self._time, self._random = who, time, random
        self._tries = 0
        self._since: float | None = None

    def lost(self, error: BaseException) -> float:
        """Seconds to wait before the next try: longer each time up to a bound, never the same for all."""
        if self._since is None:
            self._since = self._time()
            kind = type(error).__name__
            log.warning("%s: no contact with the broker, trying on: %s: %s", self._who, kind, error)
        return self.late()

    def late(self) -> float:
        """The same for something that is not worth a word, unless it lasts."""
        longest = min(FIRST * 2.0**self._tries, LONGEST)
        self._tries = min(self._tries + 1, 30)
        return longest * (0.5 + self._random() / 2)

    def held(self) -> None:
        """The broker answered."""
        if self._tries:
            if self._since is not None:
                away = self._time() - self._since
                log.warning("%s: the broker is back after %.1f s", self._who, away)
            self._tries, self._since = 0, None
