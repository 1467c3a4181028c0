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

_NOT_READY = ("is not ready", "request for unknown model", "unavailable", "exiting", "not found")
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


def triton_error(message: str, *, prompt_field: str = "messages", status: str = "") -> SlipstreamError:
    """The error for a Triton error message; the model puts a code first: `code: what went wrong`.

    `prompt_field` is the request's field that is blamed for a too long prompt, `status` that of the gRPC call.
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
    """The error for a failed call."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return UpstreamFailed("The inference server failed.", detail=type(error).__name__)
    status = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        return UpstreamUnavailable("The inference server is unreachable.", detail=describe_call(error))
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamTimeout("The inference server did not respond in time.")
    return triton_error(error.details() or "", status=status.name)


def describe_call(error: grpc.aio.AioRpcError) -> str:
    """One line about a failed call without its message, which may be the server's: the status and known reasons."""
    reasons = _found(_CONNECTION_FAILURES, error.details() or "")
    return f"{error.code().name}: {reasons}" if reasons else error.code().name


def _found(phrases: tuple[str, ...], text: str) -> str:
    return ", ".join(phrase for phrase in phrases if phrase in text)
