"""The one error of the tour."""

from __future__ import annotations

from dray.errors import DrayError


class Trouble(DrayError):
    """The tour cannot go on; the message says what was expected and what was there instead."""
