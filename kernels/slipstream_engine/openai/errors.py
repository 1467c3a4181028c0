"""Errors of the application in OpenAI's form, with vLLM's names of their types."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from slipstream_engine.errors import EngineError, OverloadedError, RequestError

JSON = "application/json"


class Refusal(Exception):
    """An error answer. `param` is the path of the field that is wrong."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> bytes:
        kind = self.status.phrase.replace(" ", "").removesuffix("Error") + "Error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status.value}
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
        return Refusal(HTTPStatus.BAD_REQUEST, str(error), error.param or prompt)
    if isinstance(error, OverloadedError):
        return Refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error))
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
