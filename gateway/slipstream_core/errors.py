"""Everything that can go wrong in the gateway, as one tree. The map to HTTP status codes stands in `api.errors`.

SlipstreamError
├── CommandError              the command line cannot go on: one line, an exit code
├── ManifestError             a manifest that cannot be used; names the field path
├── RequestError              the client's request is at fault (never retried)
│   ├── InvalidRequest        malformed or out of bounds
│   ├── UnsupportedParameter  asks for something that no backend of the pair can honour
│   ├── ModelNotFound         no such model here
│   ├── ContextLengthExceeded prompt and answer do not fit
│   ├── BodyTooLarge          more bytes than the limit
│   ├── UnsupportedMedia      a body that is no plain JSON
│   └── UpstreamRejected      the upstream's own 4xx, passed through as it came
├── AccessError               the caller may not do this, or not now
│   ├── NotAuthenticated      no key or token, or none that is known
│   ├── Forbidden             known, and not allowed to
│   └── LimitReached          allowed, and more than the caller's rate, concurrency or budget
├── Overloaded                more work than the gateway or an upstream takes; come back later
├── ClientTimeout             the client does not read its answer
├── DeadlineExceeded          the client's own deadline passed
├── Incomparable              an answer that parity cannot compare; never leaves it
└── UpstreamError             the upstream is at fault
    ├── UpstreamUnavailable   could not be reached, or says that it is not ready
    ├── UpstreamTimeout       a deadline passed
    │   └── UpstreamStalled   a stream that fell silent, while there is somewhere else to go on
    │       └── UpstreamHalted    and its server with it
    ├── UpstreamFailed        answered, and the answer is broken or an internal error
    └── StreamInterrupted     broke off after the first byte, and could not go on elsewhere
"""

from __future__ import annotations

_SHOWN_CHARS = 80


def shorten(text: str) -> str:
    """A client's own words for a message, cut to a readable length."""
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def for_log(error: BaseException) -> str:
    """What a log may say of an error: messages other than those of `UpstreamError`, `UpstreamRejected` and `Overloaded`
    may quote a client or a server, and so only the name of the class stands for them."""
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


class ManifestError(SlipstreamError):
    """A manifest is not usable. `field` is the path to the culprit, e.g. `ModelPair/acme: spec.target.model`.

    `problems` has one line for everything that is wrong, where there is more than one thing to say.
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


class InvalidRequest(RequestError):
    """Malformed or out of bounds; the message names the field and the value."""


class UnsupportedParameter(RequestError):
    """No backend of this pair can honour the parameter, and none is dropped in silence."""

    def __init__(self, message: str, *, param: str | None, code: str = "unsupported_parameter") -> None:
        super().__init__(message, param=param, code=code)


class ModelNotFound(RequestError):
    """There is no such model. Says nothing of the models that exist."""

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{shorten(model)}' does not exist.", param="model", code="model_not_found")


class ContextLengthExceeded(RequestError):
    """The prompt does not fit; the message has both numbers. `param` is the field that holds the prompt."""

    def __init__(self, message: str, *, param: str = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class BodyTooLarge(RequestError):
    """The body is over the limit, whatever its content-length says."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.", code="request_too_large")


class UnsupportedMedia(RequestError):
    """The body is compressed, or says that it is something else than JSON; `param` is the header that says so."""


class UpstreamRejected(RequestError):
    """An OpenAI-compatible upstream answered 4xx: its status goes to the client, and its body where that is JSON."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"The upstream rejected the request with status {status}.")
        self.status = status
        self.body = body


class AccessError(SlipstreamError):
    """The caller is refused. Says nothing of keys or of what others may do."""


class NotAuthenticated(AccessError):
    """There is no key or token, or none that is known here; which of them is nobody's business."""


class Forbidden(AccessError):
    """The caller is known, and may not do what it asks."""


class LimitReached(AccessError):
    """The caller is at one of its own limits: `limit` is its name in the file of keys. It may try again after
    `retry_after_s`; None: never with this request, as it is larger than the limit itself. `headers` tell where the
    caller stands."""

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
    """Too much work at once; the client may try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ClientTimeout(SlipstreamError):
    """The client took too long to read what was sent; its place goes to others."""


class DeadlineExceeded(SlipstreamError):
    """The time that the client gave its request is over. Nobody is to blame, and nothing is tried again."""


class Incomparable(SlipstreamError):
    """An answer that cannot be compared with another; `cause` is from a closed set. Says nothing of its text."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"The answer cannot be compared: {cause}.")
        self.cause = cause


class UpstreamError(SlipstreamError):
    """The upstream is at fault; before the first byte another replica may be tried.

    The message goes to clients and names no address; `detail` says more, to the log alone. Neither quotes bytes that
    the upstream sent: they may be text of an answer.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class UpstreamUnavailable(UpstreamError):
    """The upstream cannot be reached, or none of its replicas is up; retry after `retry_after_s`."""

    def __init__(self, message: str, *, detail: str = "", retry_after_s: float = 2.0) -> None:
        super().__init__(message, detail=detail)
        self.retry_after_s = retry_after_s


class UpstreamTimeout(UpstreamError):
    """A deadline passed: connect, first chunk, between chunks, or total; the message says which."""


class UpstreamStalled(UpstreamTimeout):
    """A stream that can go on elsewhere had no chunk within the stall deadline."""


class UpstreamHalted(UpstreamStalled):
    """The server gives no sign of life, with its connections open."""


class UpstreamFailed(UpstreamError):
    """The upstream answered with an internal error or with something that cannot be understood."""


class StreamInterrupted(UpstreamError):
    """An answer broke off after its first byte, for the `cause`, and does not go on; what the client has is not all
    of it."""

    def __init__(self, cause: SlipstreamError) -> None:
        super().__init__(f"{cause} The answer is not complete.")
        self.cause = cause
