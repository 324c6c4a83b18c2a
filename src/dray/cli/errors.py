"""Error messages of the command line, as text and as JSON; and suggestions for mistyped names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from dray.cli.output import harmless
from dray.errors import DrayError, InvalidInput, InvalidSettings, near_names
from dray.settings import hide_password
from dray.settings.sources import COMMAND_LINE


class CodedError(click.ClickException):
    """An error with a code for programs."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The nearest known names as a question, or the other text if none is near."""
    near = near_names(name, known)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def error_message(error: Exception, args: Sequence[str]) -> str:
    """The message. It names a wrong value by its option, not by the argument of a function."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, InvalidSettings):
        lines = [
            f"{_as_option(problem) if origin == COMMAND_LINE else problem} ({origin})"
            for problem, origin in error.problems
        ]
        text = lines[0] if len(lines) == 1 else "\n  ".join(["wrong settings:", *lines])
    elif isinstance(error, InvalidInput):
        text = _named_by_option(error, args)
    else:
        text = str(error)
    return harmless(hide_password(text))


def _as_option(error: InvalidInput) -> str:
    option = "broker" if error.field == "broker_url" else error.field.replace("_", "-")
    return f"--{option}{str(error).removeprefix(error.field)}"


def _named_by_option(error: InvalidInput, args: Sequence[str]) -> str:
    if not str(error).startswith(f"{error.field}="):
        return str(error)
    value = str(error.value)
    for option, given in _option_values(args):
        if given == value:
            return f"{option}{str(error).removeprefix(error.field)}"
    if value in args:
        return f"{error.field.upper()} {str(error).removeprefix(f'{error.field}=')}"
    return str(error)


def _option_values(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option and its value, as far as one can see without the command."""
    for index, arg in enumerate(args):
        if arg == "--":
            return
        if arg.startswith("--") and "=" in arg:
            name, _, value = arg.partition("=")
            yield name, value
        elif arg.startswith("-") and index + 1 < len(args):
            yield arg, args[index + 1]


def has_json_flag(args: Sequence[str]) -> bool:
    """`--json` is on the command line; for errors before or while options are read."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def as_json(error: Exception, text: str) -> dict[str, Any]:
    """The error in the format of the HTTP API."""
    cause = getattr(error, "cause", error)
    field = cause.field if isinstance(cause, InvalidInput) else None
    return {"error": {"code": _code(cause), "message": text, "field": field}}


def _code(error: Exception) -> str:
    if isinstance(error, InvalidSettings):
        return "invalid_settings"
    if isinstance(error, InvalidInput):
        return f"invalid_{error.field}"
    if isinstance(error, click.UsageError):
        return "usage"
    if isinstance(error, DrayError):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return getattr(error, "code", "failed")
