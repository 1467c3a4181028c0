"""The InferencePool and the HTTPRoute among a pair's children."""

from __future__ import annotations

import pytest
from slipstream_core.manifest import parse_resource

from tests.operator.pair_objects import GROUP_SPEC, JSON, SPEC, VLLM_SPEC, children, pair_object
from tests.support.foreign_kinds import http_routes, inference_pools
from tests.support.kube import KubeApiServer, install_definitions

KINDS = ("InferencePool", "HTTPRoute")
IN_CLUSTER = {"foreign_kinds": frozenset(KINDS)}
PICKER = {"name": "acme-epp"}
GATEWAY = {"name": "inference", "namespace": "gateways"}


def pair(spec: JSON = VLLM_SPEC, *, engine: JSON | None = None, **pool: object) -> JSON:
    serving = {"inferencePool": {"endpointPicker": PICKER, **pool}}
    return pair_object(spec, serving=serving, **({"engine": engine} if engine is not None else {}))


def test_without_the_field_there_is_neither():
    assert not set(KINDS) & set(children(pair_object(VLLM_SPEC), **IN_CLUSTER))


def test_a_pool_has_the_servers_of_the_pair_and_the_named_picker():
    made = children(pair(), **IN_CLUSTER)
    assert "HTTPRoute" not in made
    pool = made["InferencePool"]
    assert pool["metadata"]["name"] == made["Service"]["metadata"]["name"]
    assert pool["spec"]["selector"]["matchLabels"] == made["Service"]["spec"]["selector"]
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    assert pool["spec"]["endpointPickerRef"] == {
        "kind": "Service",
        "name": "acme-epp",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }


def test_a_pool_of_groups_has_their_leaders_only():
    selector = children(pair(GROUP_SPEC), **IN_CLUSTER)["InferencePool"]["spec"]["selector"]["matchLabels"]
    assert selector["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_a_route_leads_requests_for_the_model_to_the_pool():
    made = children(pair(gateway=GATEWAY, hostnames=["llm.example.com"]), **IN_CLUSTER)
    spec = made["HTTPRoute"]["spec"]
    assert spec["parentRefs"] == [{"group": "gateway.networking.k8s.io", "kind": "Gateway", **GATEWAY}]
    assert spec["hostnames"] == ["llm.example.com"]
    [rule] = spec["rules"]
    [match] = rule["matches"]
    assert match["headers"] == [{"type": "Exact", "name": "x-gateway-model-name", "value": "acme-70b"}]
    [backend] = rule["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", made["InferencePool"]["metadata"]["name"])
    assert rule["timeouts"] == {"request": "0s"}  # the route has no time limit: streams may be long


def test_adapters_have_the_route_of_their_model():
    adapters = [{"name": f"a{index}", "source": f"./a{index}"} for index in range(64)]
    spec = children(pair(engine={"adapters": adapters}, gateway={"name": "inference"}), **IN_CLUSTER)["HTTPRoute"][
        "spec"
    ]
    assert [len(rule["matches"]) for rule in spec["rules"]] == [64, 1]
    names = [match["headers"][0]["value"] for rule in spec["rules"] for match in rule["matches"]]
    assert names == ["acme-70b", *(f"acme-70b:a{index}" for index in range(64))]
    assert "namespace" not in spec["parentRefs"][0]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            pair(hostnames=["llm.example.com"]),
            "spec.serving.inferencePool.hostnames: has no effect without gateway, leave it out",
        ),
        (
            pair(SPEC),
            "spec.serving.inferencePool: is for engine kind vllm: endpoint pickers do not speak Triton's protocol, "
            "leave it out",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(raw: JSON, expected: str):
    assert [str(problem) for problem in parse_resource(raw).problems] == [expected]


def test_the_api_server_accepts_both(kube: KubeApiServer, namespace: str) -> None:
    install_definitions(kube, [inference_pools(), http_routes()])
    raw = pair(gateway=GATEWAY, hostnames=["*.example.com"])
    raw["metadata"]["namespace"] = namespace
    made, client = children(raw, **IN_CLUSTER), kube.client()
    for kind in KINDS:
        kept = client.apply(client.path_of(made[kind]), made[kind], field_manager="slipstream-operator")
        assert made[kind]["spec"].keys() <= kept["spec"].keys()
