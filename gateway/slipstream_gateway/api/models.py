"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slipstream_core.errors import ModelNotFound, SlipstreamError
from starlette.requests import Request
from starlette.responses import Response

from slipstream_gateway.api.access_control import OPEN_ACCESS, AccessControl
from slipstream_gateway.api.http import error_response, json_response, read_headers
from slipstream_gateway.fleet.context_lengths import ContextLengths
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ServedRoute


class ModelsEndpoint:
    """The models of the current manifest that the caller may use. It discloses neither their servers nor the existence
    of other models."""

    def __init__(self, fleet: Fleet, *, started: int, access: AccessControl = OPEN_ACCESS) -> None:
        self._fleet = fleet
        self._contexts = ContextLengths()
        self._started = started
        self._access = access

    def _visible(self, request: Request) -> Mapping[str, ServedRoute]:
        principal = self._access.authenticate(read_headers(request.scope).authorization)
        return {name: served for name, served in self._fleet.current.by_name.items() if principal.may_use(name)}

    async def list(self, request: Request) -> Response:
        try:
            visible = self._visible(request)
        except SlipstreamError as exc:
            return error_response(exc)
        return json_response({"object": "list", "data": await self._models(visible)})

    async def get(self, request: Request) -> Response:
        name = request.path_params["model"]
        try:
            served = self._visible(request).get(name)
            if served is None:
                raise ModelNotFound(name)
        except SlipstreamError as exc:
            return error_response(exc)
        return json_response((await self._models({name: served}))[0])

    async def _models(self, visible: Mapping[str, ServedRoute]) -> Sequence[dict[str, object]]:
        """The models in the form of vLLM's list. Servers report no context for an adapter: it has that of its base."""
        routes = self._fleet.current.routes
        bases = [routes.get(served.route.pair.spec.model, served) for served in visible.values()]
        contexts = await self._contexts.read(bases)
        return [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "slipstream",
                "root": name,
                "parent": None if served.adapter is None else served.route.pair.spec.model,
                "max_model_len": context,
            }
            for (name, served), context in zip(visible.items(), contexts, strict=True)
        ]
