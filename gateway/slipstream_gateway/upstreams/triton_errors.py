"""The errors of a Triton server: the codes of Slipstream's model, Triton's own messages, and failed gRPC calls.

A message that blames the request is sent to the client. Other messages are replaced by fixed texts, because an engine's
exception may quote a prompt or an answer; details are logged.
"""

from __future__ import annotations

import grpc
from slipstream_core.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    SlipstreamError,
    UnsupportedParameter,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from slipstream_core.types import GenerationRequest

from slipstream_gateway.upstreams.triton_refusals import in_request_words, prompt_field

_NOT_READY = ("is not ready", "request for unknown model", "unavailable", "exiting", "not found")
_BROKE = ("Connection reset", "Socket closed")  # of a call that had begun
_STUB_DIED = "is not healthy"  # the process of Triton's Python backend
# gRPC's messages for a failed connection, and OpenSSL's for a handshake.
_CONNECTION_FAILURES = (
    "failed to connect",
    "DNS resolution failed",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Socket closed",
    "GOAWAY",
    "handshake failed",
    "Hostname Verification",
    "CERTIFICATE_VERIFY_FAILED",
    "CERTIFICATE_REQUIRED",
    "UNKNOWN_CA",
    "WRONG_VERSION_NUMBER",
)


def triton_error(
    message: str, *, request: GenerationRequest | None = None, field: str = "", status: str = ""
) -> SlipstreamError:
    """The error for a Triton error message; the model puts a code first: `code: what went wrong`.

    `request` is the one that is answered, None for control messages; `field` is that of its prompt, by default the one
    for a single prompt. `status` is that of the gRPC call.
    """
    field = field or ("messages" if request is None else prompt_field(request))
    code, _, text = message.partition(": ")
    known = code.rsplit(" ", 1)[-1].strip()
    if known == "context_length_exceeded":
        return ContextLengthExceeded(_sentence(text), param=field)
    if known == "invalid_request":
        return InvalidRequest(text) if request is None else in_request_words(text, request, field)
    if known == "unsupported_parameter":
        return UnsupportedParameter(text, param=text.split(" ", 1)[0])
    if known == "overloaded":
        return Overloaded("The inference server is overloaded.")
    found = _found(_NOT_READY, message.lower())
    if known != "internal" and found:
        return UpstreamUnavailable("The inference server is not ready.", detail=found)
    size = f"error message of {len(message)} characters"
    detail = f"{status}, {size}" if status else size
    return UpstreamFailed("The inference server failed.", detail=detail, broke=_STUB_DIED in message)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def rpc_error(error: grpc.RpcError) -> SlipstreamError:
    """The error for a failed call."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return UpstreamFailed("The inference server failed.", detail=type(error).__name__)
    status = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        detail, broke = describe_call(error), bool(_found(_BROKE, error.details() or ""))
        return UpstreamUnavailable("The inference server is unreachable.", detail=detail, broke=broke)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamTimeout("The inference server did not respond in time.")
    return triton_error(error.details() or "", status=status.name)


def describe_call(error: grpc.aio.AioRpcError) -> str:
    """One line about a failed call without its message, which may be the server's: the status and known reasons."""
    reasons = _found(_CONNECTION_FAILURES, error.details() or "")
    return f"{error.code().name}: {reasons}" if reasons else error.code().name


def _found(phrases: tuple[str, ...], text: str) -> str:
    return ", ".join(phrase for phrase in phrases if phrase in text)
