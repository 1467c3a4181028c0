"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.errors import error_reply
from slipstream_gateway.api.http import json_response
from slipstream_gateway.director.fleet import Fleet
from slipstream_gateway.errors import ModelNotFound


class ModelsEndpoint:
    """The models of the current manifest. What serves them, and where, is nobody's business."""

    def __init__(self, fleet: Fleet, *, started: int) -> None:
        self._fleet = fleet
        self._started = started

    async def list(self, request: Request) -> Response:
        names = self._fleet.current.routes
        return json_response({"object": "list", "data": [self._model(name) for name in names]})

    async def get(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._fleet.current.routes:
            reply = error_reply(ModelNotFound(name))
            return Response(reply.body, reply.status, media_type="application/json")
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "slipstream"}
