"""The differential walk: the same random calls to several brokers, every answer compared.

The first broker is the reference; the others must give the same replies. A seed determines a walk, which is
kept as a `Script`: it replays exactly, shrinks to a few calls and prints as Python.

    script            a call as data, and how scripts are printed
    jobs              random jobs
    known_state       what the reference's replies show of the state
    durable           random calls of durable jobs
    generate edits    random calls; random changes by hand, and calls that must be refused
    scripted_broker   makes the calls of a script on one broker
    comparison        the part of a reply that must agree
    coverage          counts calls, replies and transitions
    play              makes the calls on every broker, and compares
    shrink            shortens a failing script

    python -m walk --seconds 30 --brokers memory:// sqlite:////tmp/walk.db
"""

from dray.policy import Retention
from walk.coverage import Coverage
from walk.generate import Options
from walk.play import Mismatch, Side, replay, side, walk
from walk.script import Op, Script, op
from walk.shrink import shrink

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
