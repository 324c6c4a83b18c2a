"""The pauses between tries of something that failed: growing, bounded, and different in each process.

The wait before a failed *job* is tried again is set by users, and is `policy.Backoff`.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class RetryPauses:
    """Pauses in seconds: each is `factor` times as long as the one before, at most `longest`.

    Jitter only shortens them: with 0.5, a pause lasts between half and all of its length.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        factor: float = 2.0,
        jitter: float = 0.5,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._first, self._longest, self._factor = first, longest, factor
        self._jitter, self._random = jitter, random
        self.reset()

    def reset(self) -> None:
        """Begin again with the first pause, after a try that succeeded."""
        self.tries = 0
        self._length = self._first

    def next(self) -> float:
        """The length of the next pause."""
        self.tries += 1
        length, self._length = self._length, min(self._length * self._factor, self._longest)
        return length * (1 - self._jitter * self._random())
