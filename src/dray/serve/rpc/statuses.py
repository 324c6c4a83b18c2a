"""Errors as status codes, with trailers that say what exactly is wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote

import grpc

from dray.errors import DuplicateJob, LeaseLost
from dray.serve.refusals import Refused, refusal_of

CODE: Final = "dray-error-code"
FIELD: Final = "dray-error-field"
RETRY_AFTER: Final = "dray-retry-after"
EXISTING: Final = "dray-existing-id"

_BY_HTTP: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    412: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_FIELDS: Final = {
    "args": "args_json",
    "kwargs": "kwargs_json",
    "delay": "delay_seconds",
    "key_ttl": "key_ttl_seconds",
    "once": "once_seconds",
    "retries": "max_retries",
    "timeout": "timeout_seconds",
    "ttl": "ttl_seconds",
    "result_ttl": "result_ttl_seconds",
    "how": "kind",
    "result": "result_json",
}
"""What a field that Python or HTTP calls so is called in the .proto."""

log = logging.getLogger("dray.serve")


if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:  # at run time it takes no parameters
    Context = grpc.aio.ServicerContext


class Answer:
    """How a call ends that did not go well."""

    def __init__(self, status: grpc.StatusCode, code: str, message: str, field: str = "") -> None:
        self.status, self.code, self.message, self.field = status, code, message, field
        self.trailers: dict[str, str] = {}

    @property
    def number(self) -> int:
        """The status as a number, for items of a batch."""
        number: int = self.status.value[0]
        return number

    def metadata(self) -> tuple[tuple[str, str], ...]:
        found = {CODE: self.code, **({FIELD: self.field} if self.field else {}), **self.trailers}
        # Trailers are ASCII; an id need not be.
        return tuple(
            (name, quote(text, safe=" :/?#[]@!$&'()*+,;=\"<>^`{|}~")) for name, text in found.items()
        )


def answer_to(error: Exception) -> Answer:
    """What a caller is told of an error."""
    if isinstance(error, LeaseLost):
        return Answer(grpc.StatusCode.FAILED_PRECONDITION, "lease_lost", str(error), "token")
    refused = refusal_of(error)
    if refused is None:
        log.error("a call failed", exc_info=error)
        return Answer(grpc.StatusCode.INTERNAL, "internal", "an error of the server's own; its log has more")
    answer = _answer(refused)
    if isinstance(error, DuplicateJob):
        answer.trailers[EXISTING] = error.existing_id
    return answer


def _answer(refused: Refused) -> Answer:
    status = _BY_HTTP.get(refused.status, grpc.StatusCode.UNKNOWN)
    field = refused.field or ""
    answer = Answer(status, refused.code, refused.message, _FIELDS.get(field, field))
    if "Retry-After" in refused.headers:
        answer.trailers[RETRY_AFTER] = refused.headers["Retry-After"]
    return answer


async def fail(context: Context, error: Exception) -> NoReturn:
    """End the call with what fits the error."""
    answer = answer_to(error)
    await context.abort(answer.status, answer.message, answer.metadata())
    raise AssertionError("abort does not return")
