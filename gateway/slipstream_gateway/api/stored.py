"""`/v1/responses/{id}` and what lies below it: not here, and the answer says why."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.errors import http_error_body

_MESSAGE = "Responses are not kept: the gateway has no {method} {path}. It serves POST /v1/responses alone."


async def stored_response(request: Request) -> Response:
    """404 for each way to fetch, cancel or delete a response. The gateway keeps nothing of a response, and nothing in
    the id says which server might."""
    message = _MESSAGE.format(method=request.method, path="/v1/responses/{id}")
    return Response(http_error_body(404, message), 404, media_type="application/json")
