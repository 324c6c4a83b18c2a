"""Hides passwords in URLs that are shown or logged."""

from __future__ import annotations

import re

_LOGIN = r"\b(?!sqlite:)([a-z][\w+.-]*://)(?:([^:@/?#\s]*):)?{rest}@"
_WHOLE = re.compile(_LOGIN.format(rest=".*"), re.IGNORECASE | re.DOTALL)
_INSIDE = re.compile(_LOGIN.format(rest=r"\S*"), re.IGNORECASE)
_OPTION = re.compile(r"([?&](?:password|auth|token)=)(?:[^&\s]|&(?!\w+=))*", re.IGNORECASE)


def hide_password(text: str) -> str:
    """A URL, or a text with URLs, without passwords.

    A password may contain `/`, `?`, `#` and `@`, so everything up to the last `@` is hidden. A file path
    (`sqlite:`) has no password.

    >>> hide_password("redis://me:secret@host:6379/0")
    'redis://me:***@host:6379/0'
    """
    text = _WHOLE.sub(_hidden, text, count=1) if _WHOLE.match(text) else _INSIDE.sub(_hidden, text)
    return _OPTION.sub(r"\1***", text)


def _hidden(login: re.Match[str]) -> str:
    scheme, user = login[1], login[2]
    return f"{scheme}***@" if user is None else f"{scheme}{user}:***@"
