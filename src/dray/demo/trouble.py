"""The one error of the tour."""

from __future__ import annotations


class Trouble(Exception):
    """The tour cannot go on; the message says what was expected and what was there instead."""
