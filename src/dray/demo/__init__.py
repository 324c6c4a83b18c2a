"""`dray demo`: the tour. Real processes on the embedded broker, real accidents, every number counted.

tasks.py      what the worker runs: the background work of a small shop
place.py      a temporary folder of the tour's own, out of reach of anybody's settings
crew.py       the `dray worker` it starts, and how one of its processes comes to harm
story.py      what happens, scene by scene
follower.py   follows the broker's feed, so that the story waits for events and never for time
news.py       events as sentences
view.py       the live view on a terminal, plain lines elsewhere
summary.py    what happened, counted from the broker, and whether it went as it must
closing.py    the summary as a table or JSON, and what to try next
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from importlib import import_module
from typing import Final

from dray.demo.closing import say_summary, say_summary_json
from dray.demo.place import Place
from dray.demo.summary import Summary
from dray.demo.trouble import Trouble
from dray.demo.view import choose_view

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(*, keep: bool = False, json: bool = False) -> int:
    """Give the tour and return the exit code: 0 if everything went as it must."""
    return asyncio.run(_run(keep, json))


async def _run(keep: bool, json: bool) -> int:
    asked: list[signal.Signals] = []
    _cancel_on_signals(asked)
    try:
        with Place(keep=keep) as place:
            return await _tour(place, json)
    except asyncio.CancelledError:
        if not asked:
            raise
        print(f"dray: the demo was stopped by {asked[0].name}; nothing is left of it", file=sys.stderr)
        return 128 + asked[0]


def _cancel_on_signals(asked: list[signal.Signals]) -> None:
    """The first signal ends the tour; it cleans up after itself, so that more of them change nothing."""
    loop, tour = asyncio.get_running_loop(), asyncio.current_task()

    def stop(number: signal.Signals) -> None:
        if not asked and tour is not None:
            tour.cancel()
        asked.append(number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)


async def _tour(place: Place, json: bool) -> int:
    began = time.monotonic()
    try:
        with choose_view(json=json, began=began) as view:
            # Only now: an app reads the settings of the folder and environment it is made in.
            summary: Summary = await import_module("dray.demo.story").tell(place, view)
    except Trouble as trouble:
        print(f"dray: the demo did not go as it must: {trouble}", file=sys.stderr)
        return 1
    (say_summary_json if json else say_summary)(summary, place, time.monotonic() - began)
    return 0 if summary.sound else 1
