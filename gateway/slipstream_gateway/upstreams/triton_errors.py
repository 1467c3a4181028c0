"""The errors of a Triton server: the codes of Slipstream's model, Triton's own messages, and failed gRPC calls.

A message that blames the request goes to the client who sent it. Of all others only what is known beforehand is kept:
an engine's exception may quote a prompt or an answer, and details are logged.
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

_NOT_READY = ("is not ready", "request for unknown model", "unavailable", "exiting", "not found")
# What gRPC says of a connection that failed, and OpenSSL of a handshake.
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


def triton_error(message: str, *, prompt_field: str = "messages", status: str = "") -> SlipstreamError:
    """The error that a Triton error message stands for; the model puts a code first: `code: what went wrong`.

    `prompt_field` is the request's field that a prompt too long is blamed on, `status` that of the gRPC call.
    """
    code, _, text = message.partition(": ")
    known = code.rsplit(" ", 1)[-1].strip()
    if known == "context_length_exceeded":
        return ContextLengthExceeded(text, param=prompt_field)
    if known == "invalid_request":
        return InvalidRequest(text)
    if known == "unsupported_parameter":
        return UnsupportedParameter(text, param=text.split(" ", 1)[0])
    if known == "overloaded":
        return Overloaded("The inference server is overloaded.")
    found = _found(_NOT_READY, message.lower())
    if known != "internal" and found:
        return UpstreamUnavailable("The inference server is not ready.", detail=found)
    size = f"error message of {len(message)} characters"
    return UpstreamFailed("The inference server failed.", detail=f"{status}, {size}" if status else size)


def rpc_error(error: grpc.RpcError) -> SlipstreamError:
    """The error that a failed call stands for."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return UpstreamFailed("The inference server failed.", detail=type(error).__name__)
    status = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        return UpstreamUnavailable("The inference server cannot be reached.", detail=describe_call(error))
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamTimeout("The inference server did not answer in time.")
    return triton_error(error.details() or "", status=status.name)


def describe_call(error: grpc.aio.AioRpcError) -> str:
    """One line about a failed call without its message, which may be the server's: the status and known reasons."""
    reasons = _found(_CONNECTION_FAILURES, error.details() or "")
    return f"{error.code().name}: {reasons}" if reasons else error.code().name


def _found(phrases: tuple[str, ...], text: str) -> str:
    return ", ".join(phrase for phrase in phrases if phrase in text)
