"""`POST /v1/route`: explains the decision for a request with all its numbers, without running it."""

from __future__ import annotations

import asyncio

from slipstream_core.errors import SlipstreamError
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl
from slipstream_gateway.api.generate import overrides_of, shutting_down
from slipstream_gateway.api.http import ClientGone, error_response, json_response, read_body, read_headers
from slipstream_gateway.api.request import BodyParser
from slipstream_gateway.decide.route import explanation
from slipstream_gateway.request.dispatch import Dispatcher


class RouteEndpoint:
    """Accepts the body of any generation endpoint and recognises the endpoint by the fields; see `parse_request`.

    The decision is without random draws, as that of a request with `x-slipstream-learn: off`. `internals`: the response
    may contain what was learned from other requests, for admins if keys are configured. Each call counts as one request
    per minute of its key: it costs time of the gateway, but not of a server.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        parse: BodyParser,
        max_body_bytes: int,
        internals: bool,
        access: AccessControl = OPEN_ACCESS,
    ) -> None:
        self._dispatcher = dispatcher
        self._parse = parse
        self._max_body_bytes = max_body_bytes
        self._internals = internals
        self._access = access

    async def post(self, request: Request) -> Response:
        try:
            headers = read_headers(request.scope)
            principal = self._access.authenticate(headers.authorization)
            with self._access.arriving(principal):
                body = await read_body(headers, request.receive, self._max_body_bytes)
            parsed = await self._parse(body, overrides_of(headers), principal.key_id)
            self._access.authorize(principal, parsed)
            standing = await self._access.charge_request(principal)
            explained = self._dispatcher.explain(parsed, caller=principal.caller)
            shown = explanation(*explained, internals=self._internals and principal.is_admin)
            return json_response(shown, headers={name.decode(): value.decode() for name, value in standing})
        except SlipstreamError as exc:
            return error_response(exc)
        except asyncio.CancelledError:
            return error_response(shutting_down())
        except ClientGone:
            return Response(status_code=400)  # the client is gone
