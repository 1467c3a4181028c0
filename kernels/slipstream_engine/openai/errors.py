"""Errors of the application in OpenAI's form (platform.openai.com/docs/guides/error-codes)."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from slipstream_engine.errors import ClosedError, EngineError, OverloadedError, RequestError

JSON = "application/json"


_CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.NOT_FOUND: "model_not_found",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
}


class Refusal(Exception):
    """An error answer. `param` is the path of the field that is wrong, `code` OpenAI's name of the problem."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code or _CODES.get(status) or (None if param is None else "invalid_value")

    def body(self) -> bytes:
        kind = "server_error" if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if self.status is HTTPStatus.UNAUTHORIZED else None
        return Response(self.body(), self.status, headers, media_type=JSON)


def bad_field(param: str, message: str) -> Refusal:
    """The error for an invalid field; the message begins with the field's path."""
    return Refusal(HTTPStatus.BAD_REQUEST, f"{param} {message}", param)


def refusal_of(error: EngineError, prompt: str) -> Refusal:
    """The answer to a request that the engine refuses. `prompt` is the field with its prompt."""
    if isinstance(error, RequestError):
        where = error.param or "".join([prompt, *(f"[{at}]" for at in (error.prompt, error.token) if at is not None)])
        return Refusal(HTTPStatus.BAD_REQUEST, _message(str(error), where), where, code=error.code)
    if isinstance(error, OverloadedError):
        return Refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, ClosedError):
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


def _message(text: str, where: str) -> str:
    if text.startswith("expected "):
        return f"Invalid '{where}': {text}."
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
