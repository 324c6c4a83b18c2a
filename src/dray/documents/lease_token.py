"""Tokens that prove who holds a job (`app.external`).

Nothing is signed, and no server keeps anything: a token holds a secret, and the broker knows its hash as the
name of a session. Users who may read jobs see such names, but cannot make a token from them.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Annotated, Final

import msgspec

from dray.errors import InvalidInput, LeaseLost
from dray.job import check_word

EXTERNAL: Final = "external:"
"""The prefix of their sessions' names."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
"""A number that every broker can store: a token comes from outside."""


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    secret: bytes
    epoch: Number
    run: Number
    lease: Number
    suspect: bool = False
    seal: bytes = b""
    """Binds it to its job: the token of another job is refused."""

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
