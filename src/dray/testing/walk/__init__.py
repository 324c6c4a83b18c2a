"""The differential walk: the same random calls to several brokers, every answer compared.

The first broker is the reference; the others must answer as it does. A walk is made from a seed, and what it
did is kept as a `Script`, which replays exactly, shrinks to a few calls and prints as Python.

    script.py     a call as data, and how scripts are printed
    jobs.py       random jobs
    generate.py   random calls, with an eye on what the reference has answered so far
    edits.py      random changes by hand, and calls that must be refused
    play.py       making the calls on every broker, and comparing
    shape.py      what of an answer must agree
    shrink.py     from a long script that fails to a short one
    coverage.py   what has happened along the way

    python -m dray.testing.walk --seconds 30 --brokers memory:// sqlite:////tmp/walk.db
"""

from dray.policy import Retention
from dray.testing.walk.coverage import Coverage
from dray.testing.walk.generate import Options
from dray.testing.walk.play import Mismatch, Side, replay, side, walk
from dray.testing.walk.script import Op, Script, op
from dray.testing.walk.shrink import shrink

__all__ = [
    "Coverage",
    "Mismatch",
    "Op",
    "Options",
    "Retention",
    "Script",
    "Side",
    "op",
    "replay",
    "shrink",
    "side",
    "walk",
]
