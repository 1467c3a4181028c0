"""The tree of the gateway's errors. `api.errors` maps them to HTTP status codes.

SlipstreamError
├── CommandError              a command fails with one line and an exit code
├── ManifestError             an unusable manifest; contains the field path
├── RequestError              the client's request is at fault (never retried)
│   ├── InvalidRequest        malformed or out of bounds
│   │   └── MissingParameter      a required field is missing
│   ├── UnsupportedParameter  a parameter that no backend of the pair can honour
│   ├── ModelNotFound         unknown model
│   ├── BodyTooLarge          more bytes than the limit
│   ├── UnsupportedMedia      a body that is not plain JSON
│   └── UpstreamRejected      the upstream's own 4xx, passed through unchanged
│       └── ModelNotLoaded    the upstream does not have the model, or the adapter
├── AccessError               the caller lacks a permission, or has reached a limit
│   ├── NotAuthenticated      no key or token, or no known one
│   ├── Forbidden             known, without the permission
│   └── LimitReached          over the caller's rate, concurrency or budget
├── Overloaded                too much load on the gateway or an upstream; retry later
├── ClientTimeout             the client does not read its answer
├── DeadlineExceeded          the client's own deadline passed
├── Incomparable              an answer that parity cannot compare; internal to parity
└── UpstreamError             the upstream is at fault
    ├── UpstreamUnavailable   unreachable, or reports that it is not ready
    │   └── BreaksServers         refused, because the same request broke servers
    ├── UpstreamTimeout       a deadline passed
    │   ├── ConnectTimeout        of the connection, before the request was sent
    │   └── UpstreamStalled   a stalled stream that can be resumed elsewhere
    │       └── UpstreamHalted    a stalled stream whose server does not respond
    ├── UpstreamFailed        responded with an internal error or a malformed answer
    └── StreamInterrupted     failed after the first byte, and could not be resumed
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

_SHOWN_CHARS = 80


def shorten(text: str) -> str:
    """A client's text for a message, cut to a readable length."""
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def for_log(error: BaseException) -> str:
    """The loggable form of an error: messages other than those of `UpstreamError`, `UpstreamRejected` and `Overloaded`
    may quote a client or a server, so only the class name is used for them."""
    if isinstance(error, UpstreamError | UpstreamRejected | Overloaded):
        return f"{error} {getattr(error, 'detail', '')}".rstrip()
    return type(error).__name__


class SlipstreamError(Exception):
    """The root. `str(error)` is one clear line for a person."""


class CommandError(SlipstreamError):
    """Ends a command with one line on stderr, the lines of `tail` indented below it, and `exit_code`."""

    def __init__(self, message: str, *, exit_code: int = 1, tail: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.tail = tail


@contextmanager
def named_os_errors(what: object, *, exit_code: int = 1) -> Iterator[None]:
    """Raises `CommandError` about `what`, usually a path, for an `OSError`: only some of them name their file."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"{what}: {error.strerror or error}", exit_code=exit_code) from error


class ManifestError(SlipstreamError):
    """A manifest is unusable. `field` is the path of the invalid field, e.g. `ModelPair/acme: spec.target.model`.

    `problems` has one line per problem, if there are several.
    """

    def __init__(self, message: str, *, field: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.problems = problems or (str(self),)


class RequestError(SlipstreamError):
    """The request is at fault. `param` names the field, `code` is OpenAI's error code where one exists."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class RequestCode(StrEnum):
    """OpenAI's codes of errors in a field of the request."""

    ARRAY_TOO_LONG = "array_above_max_length"
    CONTEXT_LENGTH = "context_length_exceeded"
    DECIMAL_TOO_LARGE = "decimal_above_max_value"
    DECIMAL_TOO_SMALL = "decimal_below_min_value"
    EMPTY_ARRAY = "empty_array"
    INTEGER_TOO_LARGE = "integer_above_max_value"
    INTEGER_TOO_SMALL = "integer_below_min_value"
    MISSING = "missing_required_parameter"
    MODEL_NOT_FOUND = "model_not_found"
    STATE_NOT_FOUND = "previous_response_not_found"
    STRING_TOO_LONG = "string_above_max_length"
    TYPE = "invalid_type"
    UNKNOWN = "unknown_parameter"
    UNSUPPORTED = "unsupported_parameter"
    UNSUPPORTED_VALUE = "unsupported_value"
    VALUE = "invalid_value"


class InvalidRequest(RequestError):
    """Malformed or out of bounds; the message names the field and the value. With a `param`, the code is
    `invalid_value` unless there is a closer one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=RequestCode.VALUE if code is None and param is not None else code)


class MissingParameter(InvalidRequest):
    """The body lacks the field `name`. `hint` is a further sentence."""

    def __init__(self, name: str, hint: str = "") -> None:
        message = f"Missing required parameter: '{name}'. {hint}".rstrip()
        super().__init__(message, param=name, code=RequestCode.MISSING)


class UnsupportedParameter(RequestError):
    """No backend of this pair can honour the parameter, and none is dropped silently."""

    def __init__(self, message: str, *, param: str | None, code: str = RequestCode.UNSUPPORTED) -> None:
        super().__init__(message, param=param, code=code)


class ModelNotFound(RequestError):
    """There is no such model. The message discloses no other models."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{shorten(model)}' does not exist.", param="model", code=RequestCode.MODEL_NOT_FOUND
        )


class BodyTooLarge(RequestError):
    """The body exceeds the limit, whatever its content-length."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body exceeds {limit_bytes} bytes.", code="request_too_large")


class UnsupportedMedia(RequestError):
    """The body is compressed, or declared as something other than JSON; `param` is the header in question."""


class UpstreamRejected(RequestError):
    """An OpenAI-compatible upstream responded with 4xx: its status goes to the client, and its body if that is JSON."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"The upstream rejected the request with status {status}.")
        self.status = status
        self.body = body


class ModelNotLoaded(UpstreamRejected):
    """The upstream does not have the model or the LoRA adapter by the name that it was sent."""


class AccessError(SlipstreamError):
    """The caller is refused. The message discloses nothing about keys or other callers' permissions."""


class NotAuthenticated(AccessError):
    """There is no key or token, or no known one; the message does not say which."""


class Forbidden(AccessError):
    """The caller is known, and lacks the permission. `param` is the field of the request that needs it, if any."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class LimitReached(AccessError):
    """The caller has reached one of its limits: `limit` is its name in the key file. It may retry after
    `retry_after_s`; None: never with this request, because it exceeds the limit itself. `headers` hold the caller's
    remainders."""

    def __init__(
        self,
        message: str,
        *,
        limit: str,
        retry_after_s: float | None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.headers = headers


class Overloaded(SlipstreamError):
    """Too much load; the client may retry after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ClientTimeout(SlipstreamError):
    """The client reads its answer too slowly; its place is given to other requests."""


class DeadlineExceeded(SlipstreamError):
    """The client's own deadline for its request has passed. No side is at fault, and there is no retry."""


class Incomparable(SlipstreamError):
    """An answer that cannot be compared with another; `cause` is from a closed set. Contains no text of the answer."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"The answer cannot be compared: {cause}.")
        self.cause = cause


class UpstreamError(SlipstreamError):
    """The upstream is at fault; before the first byte another replica may be tried.

    The message goes to clients and contains no address; `detail` is for the log only. Neither quotes bytes from the
    upstream, which may be text of an answer. `broke`: the connection broke after the request had been sent, so the
    request may be the cause.
    """

    def __init__(self, message: str, *, detail: str = "", broke: bool = False) -> None:
        super().__init__(message)
        self.detail = detail
        self.broke = broke

    @property
    def was_sent(self) -> bool:
        """Whether the upstream may have run the request."""
        return True


class UpstreamUnavailable(UpstreamError):
    """The upstream is unreachable, or none of its replicas is up; retry after `retry_after_s`."""

    def __init__(self, message: str, *, detail: str = "", broke: bool = False, retry_after_s: float = 2.0) -> None:
        super().__init__(message, detail=detail, broke=broke)
        self.retry_after_s = retry_after_s

    @property
    def was_sent(self) -> bool:
        return self.broke


class BreaksServers(UpstreamUnavailable):
    """The same request broke several servers a short time ago, and is refused for `retry_after_s`."""


class UpstreamTimeout(UpstreamError):
    """A deadline passed: first chunk, between chunks, or total; the message says which."""


class ConnectTimeout(UpstreamTimeout):
    """The upstream did not accept a connection in time."""

    @property
    def was_sent(self) -> bool:
        return False


class UpstreamStalled(UpstreamTimeout):
    """A stream that can be resumed elsewhere had no chunk within the stall deadline."""


class UpstreamHalted(UpstreamStalled):
    """The server stopped responding although its connections are open."""


class UpstreamFailed(UpstreamError):
    """The upstream responded with an internal error or with a malformed answer."""


class StreamInterrupted(UpstreamError):
    """An answer ended prematurely after its first byte, for the reason `cause`, and cannot be resumed; the client has
    only a part of it."""

    def __init__(self, cause: SlipstreamError) -> None:
        super().__init__(f"{cause} The answer is not complete.")
        self.cause = cause
