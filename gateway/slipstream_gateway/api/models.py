"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from slipstream_core.errors import ModelNotFound, SlipstreamError
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl
from slipstream_gateway.api.http import error_response, json_response, read_headers
from slipstream_gateway.fleet.fleet import Fleet


class ModelsEndpoint:
    """The models of the current manifest that the caller may use. It discloses neither their servers nor the existence
    of other models."""

    def __init__(self, fleet: Fleet, *, started: int, access: AccessControl = OPEN_ACCESS) -> None:
        self._fleet = fleet
        self._started = started
        self._access = access

    def _visible(self, request: Request) -> list[str]:
        principal = self._access.authenticate(read_headers(request.scope).authorization)
        return [name for name in self._fleet.current.by_name if principal.may_use(name)]

    async def list(self, request: Request) -> Response:
        try:
            names = self._visible(request)
        except SlipstreamError as exc:
            return error_response(exc)
        return json_response({"object": "list", "data": [self._model(name) for name in names]})

    async def get(self, request: Request) -> Response:
        name = request.path_params["model"]
        try:
            if name not in self._visible(request):
                raise ModelNotFound(name)
        except SlipstreamError as exc:
            return error_response(exc)
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "slipstream"}
