"""`/v1/responses/{id}` and the paths below it: not supported, with a message that explains why."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.errors import http_error_body

_MESSAGE = "The gateway stores no responses, so {method} {path} is not supported. Use POST /v1/responses."


async def stored_response(request: Request) -> Response:
    """404 for all operations on a stored response. The gateway stores nothing of a response, and the id does not
    identify the server that might."""
    message = _MESSAGE.format(method=request.method, path="/v1/responses/{id}")
    return Response(http_error_body(404, message), 404, media_type="application/json")
