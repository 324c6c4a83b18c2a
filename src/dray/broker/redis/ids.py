"""Ids as a queue stores them.

A generated id, `queue:` and 32 hex digits, is stored in its own queue as `:` and 22 characters of base64,
because every ready job is named three times. Any other id is stored as it is, with one more `:` before a
leading one. All ids in the keys of a queue have this form, also those of dependants in other queues.
"""

from __future__ import annotations

from binascii import Error, a2b_base64, b2a_base64


def stored_id(id: str, queue: str) -> bytes:
    """The form of an id in the keys of a queue."""
    if len(id) == len(queue) + 33 and id.startswith(queue) and id[-33] == ":":
        digits = id[-32:]
        try:
            bits = bytes.fromhex(digits)
        except ValueError:
            return id.encode()
        if bits.hex() == digits:
            return b":" + b2a_base64(bits, newline=False)[:22]
    return id.encode() if id[:1] != ":" else b":" + id.encode()


def public_id(stored: bytes, queue: str) -> str:
    """The id as clients know it, from the keys of a queue."""
    if stored[:1] != b":":
        return stored.decode()
    if stored[1:2] == b":":
        return stored[1:].decode()
    try:
        return f"{queue}:{a2b_base64(stored[1:] + b'==').hex()}"
    except Error:
        return stored.decode(errors="replace")  # damaged: shown as it is
