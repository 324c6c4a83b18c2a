"""The fingerprint of an error: equal for errors that differ only in numbers and quoted values."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

MESSAGE_MAX: Final = 100
"""Characters of a message that count: a shortened error has the same fingerprint as the full one."""
_QUOTED = re.compile(r"'[^']*'?|\"[^\"]*\"?|`[^`]*`?")
_NUMBER = re.compile(r"\b(?:0x)?[0-9a-f]*[0-9][0-9a-f-]*\b", re.IGNORECASE)


def normalize(message: str) -> str:
    """The message with numbers and quoted values replaced.

    >>> normalize("no user 42 in table 'shop_7'")
    'no user # in table …'
    """
    first_line = message.strip().partition("\n")[0][:MESSAGE_MAX]
    return _NUMBER.sub("#", _QUOTED.sub("…", first_line))


def fingerprint(task: str, type: str, message: str) -> str:
    """Sixteen hexadecimal digits made of the task, the error's type and its normalized message."""
    text = "\n".join((task, type.rpartition(".")[2], normalize(message)))
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
