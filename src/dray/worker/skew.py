"""How far the machine's clock is from the broker's, which all count by."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from dray.broker.verbs import Broker
from dray.roster import SKEWED, describe_skew

STEP: Final = 500
"""Milliseconds by which it must change to count as another one: it is never quite the same twice."""

log = logging.getLogger("dray.worker")


class Skew:
    """Looks at both clocks, and warns when they part."""

    def __init__(self, broker: Broker, wall: Callable[[], float] = time.time) -> None:
        self._broker, self._wall = broker, wall
        self._skew = self._told = 0

    def now(self) -> int:
        """The broker's time."""
        return self._broker.clock()

    def look(self) -> int:
        """Milliseconds by which the machine's clock is ahead of the broker's; negative if it is behind."""
        skew = round(self._wall() * 1000) - self._broker.clock()
        if abs(skew - self._skew) >= STEP:
            self._skew = skew
        if abs(self._skew) > SKEWED and abs(self._skew - self._told) > SKEWED:
            self._told = self._skew
            log.warning(
                "the clock of this machine is %s the broker's; dray goes by the broker's, your own code may "
                "not: keep the clocks of all machines by NTP",
                describe_skew(self._skew),
            )
        elif abs(self._skew) <= SKEWED and self._told:
            self._told = 0
            log.warning("the clock of this machine agrees with the broker's again")
        return self._skew
