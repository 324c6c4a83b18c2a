"""Tokens of held jobs (`app.external`): what proves that a job is held, and by whom.

Nothing is signed and no server keeps anything: a token holds a secret of which the broker knows the hash, as
the name of a session. Whoever may look at jobs sees such names, and still cannot make a token.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

import msgspec

from dray.errors import InvalidInput, LeaseLost
from dray.job import check_word

EXTERNAL: Final = "external:"
"""What the names of their sessions begin with."""


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    secret: bytes
    epoch: int
    run: int
    lease: int
    suspect: bool = False
    seal: bytes = b""
    """Which job it belongs to: tokens that were mixed up are found out."""

    @property
    def session(self) -> str:
        return f"{EXTERNAL}{hashlib.sha256(self.secret).hexdigest()[:32]}"

    def seal_of(self, id: str) -> bytes:
        return hashlib.sha256(self.secret + id.encode("utf-8", "surrogatepass")).digest()[:8]

    def text(self) -> str:
        return base64.urlsafe_b64encode(_pack(self)).rstrip(b"=").decode("ascii")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Token).decode


def read_token(id: object, text: object) -> Token:
    name = check_word("id", id)
    try:
        if not isinstance(text, str) or len(text) > 256:
            raise ValueError(text)
        token = _unpack(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput("token", text, "the token that came with the job is allowed") from None
    if token.seal != token.seal_of(name):
        raise LeaseLost(name)
    return token
