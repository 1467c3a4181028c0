"""What the gateway makes of a feature in front of each engine, before it sends anything: it is served by both arms, by
the plain arm alone, or refused by the name of a parameter. Computed by the gateway's own parser and routing table."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import httpx
import openai
from slipstream_core.errors import SlipstreamError
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_core.manifest.table import Route
from slipstream_gateway.api.parse import parse_request

from tests.support.openai_client.features import Feature, Target

_EXAMPLES = Path(__file__).resolve().parents[3] / "deploy" / "examples"


def _route(manifest: Path) -> Route:
    """The route of the manifest's first pair."""
    return next(iter(load_file(manifest).routes.values()))


ROUTES: Mapping[str, Route] = MappingProxyType(
    {
        "own": _route(EMBEDDED_MANIFEST),
        "pools": _route(_EXAMPLES / "external-vllm.yaml"),
        "sglang": _route(_EXAMPLES / "cluster-sglang.yaml"),
        "trtllm": _route(_EXAMPLES / "cluster-trtllm.yaml"),
    }
)


class Served(Enum):
    """The value is the cell of the documentation's table."""

    BOTH = "yes"
    PLAIN = "plainly"
    REFUSED = "refused"


class _Sent(Exception):
    """Ends a call of the client at its first request."""


def body_of(feature: Feature, model: str) -> bytes | None:
    """The body of the feature's first request; None if it asks something other than a generation."""
    sent: list[httpx.Request] = []

    def keep(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        raise _Sent

    with httpx.Client(transport=httpx.MockTransport(keep)) as transport:
        client = openai.OpenAI(base_url="http://none/v1", api_key="none", max_retries=0, http_client=transport)
        with contextlib.suppress(_Sent):
            feature.run(Target(client, model))
    return sent[0].content if sent[0].method == "POST" else None


def expected(feature: Feature, route: Route) -> tuple[Served, tuple[str, ...]]:
    """How `route` serves the feature, and the parameters that none of its servers honours. A request that the gateway
    refuses for every engine is refused here, too, with the parameter that the error names."""
    if feature.own_refusal is not None and route is ROUTES["own"]:
        return Served.REFUSED, (feature.own_refusal,)
    body = body_of(feature, route.model)
    try:
        used = _used(body) if body is not None else frozenset()
    except SlipstreamError as exc:
        return Served.REFUSED, (str(exc.param),)
    if lacking := route.plain_for(used).capabilities.missing(used):
        return Served.REFUSED, lacking
    if route.speculative is None or route.speculative.capabilities.missing(used):
        return Served.PLAIN, ()
    return Served.BOTH, ()


def _used(body: bytes) -> frozenset[str]:
    request = parse_request(body)
    return request.features | {"n"} if request.n > 1 else request.features
