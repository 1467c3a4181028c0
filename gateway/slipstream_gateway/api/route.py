"""`POST /v1/route`: the decision for a request with every number behind it, without running it."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.errors import error_reply
from slipstream_gateway.api.generate import Parse
from slipstream_gateway.api.http import json_response, read_body
from slipstream_gateway.director.director import Director, Explanation
from slipstream_gateway.errors import SlipstreamError


class RouteEndpoint:
    """Takes the body of either generation endpoint: with `messages` it is a chat, else a completion."""

    def __init__(self, director: Director, *, parse: Parse, max_body_bytes: int) -> None:
        self._director = director
        self._parse = parse
        self._max_body_bytes = max_body_bytes

    async def post(self, request: Request) -> Response:
        try:
            body = await read_body(request.scope, request.receive, self._max_body_bytes)
            parsed = self._parse(body, mode=request.headers.get("x-slipstream-mode"))
            return json_response(explain(self._director.explain(parsed)))
        except SlipstreamError as exc:
            reply = error_reply(exc)
            headers = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
            return Response(reply.body, reply.status, headers)


def explain(explanation: Explanation) -> dict[str, object]:
    """The explanation as JSON values."""
    decision, profile = explanation.decision, explanation.profile
    return {
        "object": "slipstream.decision",
        "pair": explanation.pair,
        "arm": decision.arm,
        "reason": decision.reason,
        "detail": decision.detail,
        "class": decision.request_class,
        "draft_length": decision.draft_length,
        "numbers": dict(decision.numbers),
        "profile": msgspec.to_builtins(profile),
    }
