"""The InferencePool of a pair's servers, and the HTTPRoute that leads requests for its model to the pool."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.adapters import adapter_name, adapters_of
from slipstream_core.manifest.inference_pool import MODEL_HEADER, InferencePool, ParentGateway
from slipstream_core.manifest.naming import HTTP_PORT_NAME
from slipstream_core.manifest.objects import ModelPair

from slipstream_operator.children.identity import Owner, child
from slipstream_operator.children.service import server_labels

POOL_API_VERSION = "inference.networking.k8s.io/v1"
ROUTE_API_VERSION = "gateway.networking.k8s.io/v1"
_MAX_MATCHES = 64  # of a rule


def inference_pool(owner: Owner, wanted: InferencePool, *, leaders_only: bool) -> dict[str, Any]:
    """The pool of the ready servers. `leaders_only`: see `service`."""
    picker = wanted.endpoint_picker
    spec = {
        "selector": {"matchLabels": server_labels(owner, leaders_only=leaders_only)},
        "targetPorts": [{"number": owner.software.ports[HTTP_PORT_NAME]}],
        "appProtocol": "http",
        "endpointPickerRef": {
            "kind": "Service",
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": picker.failure_mode,
        },
    }
    return child(POOL_API_VERSION, "InferencePool", owner, spec=spec)


def http_route(pair: ModelPair, owner: Owner, wanted: InferencePool, gateway: ParentGateway) -> dict[str, Any]:
    """The route of the names of the pair's model and adapters. An answer may take any time."""
    group, _, _ = POOL_API_VERSION.partition("/")
    backend = {"group": group, "kind": "InferencePool", "name": owner.child_name, "weight": 1}
    names = [pair.spec.model, *(adapter_name(pair.spec.model, adapter) for adapter in adapters_of(pair))]
    spec: dict[str, Any] = {
        "parentRefs": [
            {
                "group": ROUTE_API_VERSION.partition("/")[0],
                "kind": "Gateway",
                "name": gateway.name,
                **({"namespace": gateway.namespace} if gateway.namespace is not None else {}),
            }
        ],
        "rules": [
            {
                "matches": [_match(name) for name in names[at : at + _MAX_MATCHES]],
                "backendRefs": [backend],
                "timeouts": {"request": "0s"},
            }
            for at in range(0, len(names), _MAX_MATCHES)
        ],
    }
    if wanted.hostnames:
        spec["hostnames"] = list(wanted.hostnames)
    return child(ROUTE_API_VERSION, "HTTPRoute", owner, spec=spec)


def _match(model: str) -> dict[str, Any]:
    return {
        "path": {"type": "PathPrefix", "value": "/v1"},
        "headers": [{"type": "Exact", "name": MODEL_HEADER, "value": model}],
    }
