"""The errors of a Triton server: those of the pipe model, Triton's own messages, and failed gRPC calls.

Messages are replaced by fixed texts, because an engine's exception may quote a prompt or an answer; details are logged.
"""

from __future__ import annotations

import grpc
from slipstream_core.errors import SlipstreamError, UpstreamFailed, UpstreamTimeout, UpstreamUnavailable

_HALTED = "halted: "  # the pipe's message for answers that its end cuts short
_OTHER_MODEL = "unexpected inference input"  # Triton's message for a tensor that the model does not have
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


def triton_error(message: str, *, status: str = "") -> SlipstreamError:
    """The error for a Triton error message. `status` is that of the gRPC call."""
    if _HALTED in message:
        return UpstreamUnavailable("The upstream is shutting down.")
    if _OTHER_MODEL in message:
        return UpstreamUnavailable("The upstream's Triton model is of another version of Slipstream.")
    size = f"error message of {len(message)} characters"
    detail = f"{status}, {size}" if status else size
    if "internal: " not in message and (found := _found(_NOT_READY, message.lower())):
        return UpstreamUnavailable("The upstream is not ready.", detail=found)
    return UpstreamFailed("The upstream failed.", detail=detail, broke=_STUB_DIED in message)


def rpc_error(error: grpc.RpcError) -> SlipstreamError:
    """The error for a failed call."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return UpstreamFailed("The upstream failed.", detail=type(error).__name__)
    status = error.code()
    if status is grpc.StatusCode.UNAVAILABLE:
        detail, broke = describe_call(error), bool(_found(_BROKE, error.details() or ""))
        return UpstreamUnavailable("The upstream is unreachable.", detail=detail, broke=broke)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamTimeout("The upstream did not respond in time.")
    return triton_error(error.details() or "", status=status.name)


def describe_call(error: grpc.aio.AioRpcError) -> str:
    """One line about a failed call without its message, which may be the server's: the status and known reasons."""
    reasons = _found(_CONNECTION_FAILURES, error.details() or "")
    return f"{error.code().name}: {reasons}" if reasons else error.code().name


def _found(phrases: tuple[str, ...], text: str) -> str:
    return ", ".join(phrase for phrase in phrases if phrase in text)
