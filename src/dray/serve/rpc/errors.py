"""Errors as status codes of gRPC, with trailers for the code, the field and what else a client can use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote

import grpc

from dray.errors import DuplicateJob
from dray.serve.errors import GRPC_STATUS, Refused, refusal_of
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc.messages import OPTION_FIELDS

_FIELDS: Final = {
    "args": "args_json",
    "kwargs": "kwargs_json",
    "how": "kind",
    "result": "result_json",
    **{name: field.name for name, field in OPTION_FIELDS.items()},
}
"""Fields that have another name in the .proto than in Python and HTTP."""

log = logging.getLogger("dray.serve")


if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:  # at run time it takes no parameters
    Context = grpc.aio.ServicerContext


def refusal_in_grpc(error: Exception) -> Refused:
    """The reply to an error, its field named as in the .proto; an error of the server's own is logged."""
    refused = refusal_of(error)
    if refused is None:
        log.error("a call failed", exc_info=error)
        return Refused(500, "internal", "an error of the server's own; its log has more")
    field = None if refused.field is None else _FIELDS.get(refused.field, refused.field)
    return Refused(refused.status, refused.code, refused.message, field, refused.headers)


def status_of(refused: Refused) -> grpc.StatusCode:
    return grpc.StatusCode[GRPC_STATUS.get(refused.status, "UNKNOWN")]


def refusal_message(refused: Refused) -> pb.Refusal:
    """The refusal of one item of several."""
    number: int = status_of(refused).value[0]
    return pb.Refusal(status=number, code=refused.code, message=refused.message, field=refused.field or "")


async def fail(context: Context, error: Exception) -> NoReturn:
    """End the call with the status of the error."""
    refused = refusal_in_grpc(error)
    trailers = {
        "dray-error-code": refused.code,
        "dray-error-field": refused.field,
        "dray-retry-after": refused.headers.get("Retry-After"),
        "dray-existing-id": error.existing_id if isinstance(error, DuplicateJob) else None,
    }
    # Trailers are ASCII; an id need not be.
    metadata = tuple(
        (name, quote(text, safe=" :/?#[]@!$&'()*+,;=\"<>^`{|}~")) for name, text in trailers.items() if text
    )
    await context.abort(status_of(refused), refused.message, metadata)
    raise AssertionError("abort does not return")
