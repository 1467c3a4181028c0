"""The children by which requests reach a pair's servers: their Service and InferencePool, who may connect, and how many
may be evicted. With the servers' account."""

from __future__ import annotations

from slipstream_core.manifest.adapters import adapter_name, adapters_of
from slipstream_core.manifest.inference_pool import MODEL_HEADER, InferencePool, ParentGateway
from slipstream_core.manifest.naming import HTTP_PORT_NAME

from slipstream_operator.children.identity import TRITON, Owner, child, given
from slipstream_operator.types import KubeObject

POOL_API_VERSION = "inference.networking.k8s.io/v1"
ROUTE_API_VERSION = "gateway.networking.k8s.io/v1"
_MAX_MATCHES = 64  # of a rule


def service_account(owner: Owner) -> KubeObject:
    """The servers' identity. It has no rights in the cluster, and no pod gets its token; by its annotations a cloud may
    know it."""
    account = child("v1", "ServiceAccount", owner, automountServiceAccountToken=False)
    account["metadata"] |= given(annotations=dict(owner.pair.serving.service_account_annotations))
    return account


def service(owner: Owner) -> KubeObject:
    """The Service of the ready servers, by whose EndpointSlices gateways find them. A server that is loading or
    draining gets no requests.

    This is the default of `publishNotReadyAddresses`, a field that the API server drops if it has the default.
    """
    ports = [
        {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
        for name, port in owner.software.ports.items()
    ]
    return child("v1", "Service", owner, spec={"type": "ClusterIP", "selector": owner.server_labels, "ports": ports})


def disruption_budget(owner: Owner) -> KubeObject:
    """A budget of one eviction at a time, with any number of replicas. With a minimum, the node of a single server
    could never be drained, although the Deployment replaces the server."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": owner.selector}}
    return child(owner.defaults.pdb_api_version, "PodDisruptionBudget", owner, spec=spec)


def network_policy(owner: Owner, ingress: tuple[KubeObject, ...]) -> KubeObject:
    """The NetworkPolicy with the rules `ingress`, which name Triton's ports; all other ingress is blocked, since the
    servers have no authentication. Egress stays open: weights may be downloaded from any address. The pods of a group
    connect to each other."""
    rules = [_for_ports_of(owner, rule) for rule in ingress]
    if owner.is_group:
        rules.append({"from": [{"podSelector": {"matchLabels": owner.selector}}]})
    spec = {"podSelector": {"matchLabels": owner.selector}, "policyTypes": ["Ingress"], "ingress": rules}
    return child("networking.k8s.io/v1", "NetworkPolicy", owner, spec=spec)


def inference_pool(owner: Owner, wanted: InferencePool) -> KubeObject:
    """The pool of the ready servers."""
    picker = wanted.endpoint_picker
    spec = {
        "selector": {"matchLabels": owner.server_labels},
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


def http_route(owner: Owner, wanted: InferencePool, gateway: ParentGateway) -> KubeObject:
    """The route of the names of the pair's model and adapters. An answer may take any time."""
    group, _, _ = POOL_API_VERSION.partition("/")
    backend = {"group": group, "kind": "InferencePool", "name": owner.child_name, "weight": 1}
    model = owner.pair.spec.model
    names = [model, *(adapter_name(model, adapter) for adapter in adapters_of(owner.pair))]
    parent = {"group": ROUTE_API_VERSION.partition("/")[0], "kind": "Gateway", "name": gateway.name}
    spec = {
        "parentRefs": [parent | given(namespace=gateway.namespace)],
        "rules": [
            {
                "matches": [_match(name) for name in names[at : at + _MAX_MATCHES]],
                "backendRefs": [backend],
                "timeouts": {"request": "0s"},
            }
            for at in range(0, len(names), _MAX_MATCHES)
        ],
        **given(hostnames=list(wanted.hostnames)),
    }
    return child(ROUTE_API_VERSION, "HTTPRoute", owner, spec=spec)


def _match(model: str) -> KubeObject:
    return {
        "path": {"type": "PathPrefix", "value": "/v1"},
        "headers": [{"type": "Exact", "name": MODEL_HEADER, "value": model}],
    }


def _for_ports_of(owner: Owner, rule: KubeObject) -> KubeObject:
    """`rule` with the ports of the owner's program: vLLM has one for requests and metrics."""
    if owner.software is TRITON or "ports" not in rule:
        return rule
    [number] = owner.software.ports.values()
    ports = {port.get("protocol", "TCP"): {**port, "port": number} for port in rule["ports"]}
    return {**rule, "ports": list(ports.values())}
