"""The kinds in a real API server: what it takes and refuses, and what people see of it with kubectl."""

from __future__ import annotations

import json
from typing import Any

import pytest
from slipstream_core.manifest import parse_resource

from tests.support.crd_schema import example_resources
from tests.support.kube import KubeApiServer, KubeError
from tests.support.manifests import JSON, manifest
from tests.support.polling import eventually

pytestmark = pytest.mark.usefixtures("crds")

EXAMPLES = example_resources()
API = "/apis/slipstream.dev/v1alpha1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def pair(name: str = "acme", **spec: Any) -> JSON:
    fields: JSON = {
        "model": name,
        "target": {"source": "./target"},
        "draft": {"kind": "ngram"},
        "engine": {"kind": "slipstream"},
        **spec,
    }
    return manifest("ModelPair", name, fields)


def policy(**spec: Any) -> JSON:
    return manifest("SpeculationPolicy", "acme", {"pair": "acme", **spec})


def path_of(resource: JSON, namespace: str) -> str:
    plural = {"ModelPair": "modelpairs", "SpeculationPolicy": "speculationpolicies"}[resource["kind"]]
    return f"{API}/namespaces/{namespace}/{plural}"


def create(kube: KubeApiServer, namespace: str, resource: JSON) -> str:
    """Where the new object lives."""
    path = path_of(resource, namespace)
    kube.client().create(path, resource)
    return f"{path}/{resource['metadata']['name']}"


@pytest.mark.parametrize("plural", ["modelpairs", "speculationpolicies"])
def test_the_definition_is_established_and_structural(kube: KubeApiServer, plural: str) -> None:
    found = kube.client().get(f"{DEFINITIONS}/{plural}.slipstream.dev")["status"]["conditions"]
    conditions = {condition["type"]: condition["status"] for condition in found}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}  # NonStructuralSchema would be another one


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_comes_back_as_it_was_sent_and_is_parsed(kube: KubeApiServer, namespace: str, name: str) -> None:
    for resource in EXAMPLES[name]:
        here = resource | {"metadata": resource["metadata"] | {"namespace": namespace}}
        [found] = kube.client().apply_yaml([here])
        assert found["spec"] == resource["spec"]
        parsed = parse_resource(found)
        assert (parsed.problems, parsed.ignored) == ((), ())
        assert parsed.item is not None
        assert parsed.item.metadata.key == f"{namespace}/{resource['metadata']['name']}"


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (pair(maxDraftTokens=0), "spec.maxDraftTokens"),
        (pair(maxDraftTokens="4"), "spec.maxDraftTokens"),
        (pair(model=""), "spec.model"),
        (pair(model=None), "spec.model"),
        (pair(engine={}), "spec.engine.kind"),
        (pair(engine={"kind": "sglang"}), "spec.engine.kind"),
        (pair(engine={"kind": "slipstream", "endpoints": ["grpc://a:1"] * 2}), "spec.engine.endpoints[1]"),
        (pair(engine={"kind": "slipstream", "tritonModel": "../x"}), "spec.engine.tritonModel"),
        (pair(draft={"kind": "medusa"}), "spec.draft.kind"),
        (pair(target={}), "spec.target.source"),
        (pair(serving={"storage": {"mountPath": "/models"}}), "spec.serving.storage.claim"),
        (pair(serving={"resources": {"limits": {"cpu": "much"}}}), "spec.serving.resources.limits.cpu"),
        (pair(serving={"tolerations": [{"effect": "Never"}]}), "spec.serving.tolerations.effect"),
        (pair(killSwitch="yes"), "spec.killSwitch"),
        (pair("Acme"), "metadata.name"),
        (pair("a.b"), "metadata.name"),
        (policy(pair="A"), "spec.pair"),
        (policy(confidence=0.5), "spec.confidence"),
        (policy(success={"p95Reduction": 1}), "spec.success.p95Reduction"),
        (policy(classes=[{"name": "code"}, {"name": "code"}]), "spec.classes[1]"),
        (policy(classes=[{"name": "cooking"}]), "spec.classes.name"),
        (policy(rollout={"steps": []}), "spec.rollout.steps"),
        (policy(rollout={"steps": [{"share": 0}]}), "spec.rollout.steps.share"),
        (policy(rollback={"failMode": "open"}), "spec.rollback.failMode"),
        (policy(analysis={"minSamples": 0.5}), "spec.analysis.minSamples"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_the_schema_refuses_is_named(kube: KubeApiServer, namespace: str, resource: JSON, expected: str) -> None:
    with pytest.raises(KubeError) as refused:
        create(kube, namespace, resource)
    assert refused.value.status == 422
    assert expected in str(refused.value)
    assert parse_resource(resource).item is None


def test_fields_of_another_version_are_pruned_but_not_in_affinity(kube: KubeApiServer, namespace: str) -> None:
    affinity = {"nodeAffinity": {"whatever": [{"comes": 1}]}}
    resource = pair(newField=1, serving={"affinity": affinity, "turbo": True})
    found = kube.client().get(create(kube, namespace, resource))["spec"]
    assert found == pair(serving={"affinity": affinity})["spec"]


@pytest.mark.parametrize("resource", [pair(), policy()], ids=["pair", "policy"])
def test_the_status_is_apart_from_the_spec(kube: KubeApiServer, namespace: str, resource: JSON) -> None:
    client = kube.client()
    path = create(kube, namespace, resource | {"status": {"state": "Mine"}})
    assert "status" not in client.get(path)
    client.patch_status(path, {"state": "Serving", "observedGeneration": 1})
    client.patch(path, {"status": {"state": "Mine"}, "spec": {"killSwitch": True}})
    client.patch(f"{path}/status", {"spec": {"killSwitch": False}})
    found = client.get(path)
    assert (found["status"]["state"], found["spec"]["killSwitch"]) == ("Serving", True)
    assert found["metadata"]["generation"] == 2


@pytest.mark.parametrize("resource", [pair(), policy()], ids=["pair", "policy"])
def test_a_kill_outlives_what_others_apply_and_null_takes_it_back(
    kube: KubeApiServer, namespace: str, resource: JSON
) -> None:
    client = kube.client()
    path = f"{path_of(resource, namespace)}/acme"
    client.apply(path, resource, field_manager="gitops")
    kind = resource["kind"].lower()
    kube.kubectl("patch", kind, "acme", "--type=merge", "-p", '{"spec":{"killSwitch":true}}', namespace=namespace)
    assert client.apply(path, resource, field_manager="gitops")["spec"]["killSwitch"] is True
    assert "killSwitch" not in client.patch(path, {"spec": {"killSwitch": None}})["spec"]
    resource["spec"]["killSwitch"] = None  # a manifest may say so, too
    assert parse_resource(client.apply(path, resource, field_manager="gitops")).killed is False


STATUS = {
    "state": "Serving",
    "replicas": {"ready": 1, "desired": 2},
    "accept": "0.71",
    "p95": "1.20s",
    "speculating": "3/8",
    "reason": "Promoting",
    "observedGeneration": 1,
    "gateways": {"synced": 2, "total": 2, "oldestGeneration": 1},
    "conditions": [
        {
            "type": kind,
            "status": status,
            "reason": "Because",
            "message": "1 of 2 servers are ready",
            "lastTransitionTime": "2026-11-20T10:00:00.123456Z",
        }
        for kind, status in (("Progressing", "False"), ("Ready", "True"))
    ],
}


def columns(text: str) -> list[dict[str, str]]:
    """The rows of `kubectl get`, by the places of their headings."""
    heading, *rows = text.rstrip("\n").split("\n")
    starts = [
        index for index, letter in enumerate(heading) if letter != " " and heading[index - 1 : index] in ("", " ")
    ]
    bounds = list(zip(starts, [*starts[1:], None], strict=True))
    return [{heading[a:b].strip(): row[a:b].strip() for a, b in bounds} for row in rows]


def test_kubectl_get_answers_at_a_glance(kube: KubeApiServer, namespace: str) -> None:
    for resource in (pair(), pair("other", draft={"kind": "model", "source": "./draft"}), policy()):
        kube.client().patch_status(create(kube, namespace, resource), STATUS)
    [acme, other] = columns(kube.kubectl("get", "mp", namespace=namespace))
    age = acme.pop("AGE")
    assert age.endswith("s")
    assert acme == {
        "NAME": "acme",
        "STATE": "Serving",
        "TARGET": "./target",
        "DRAFT": "ngram",
        "READY": "True",
        "ACCEPT": "0.71",
        "P95": "1.20s",
        "SPECULATING": "3/8",
        "REASON": "Promoting",
    }
    assert other["DRAFT"] == "./draft"
    [row] = columns(kube.kubectl("get", "sp", namespace=namespace))
    assert list(row) == ["NAME", "STATE", "PAIR", "ACCEPT", "P95", "SPECULATING", "REASON", "AGE"]
    assert (row["STATE"], row["PAIR"], row["REASON"]) == ("Serving", "acme", "Promoting")


@pytest.mark.parametrize("short", ["mp", "sp"])
def test_the_wide_columns_show_that_a_kill_has_landed(kube: KubeApiServer, namespace: str, short: str) -> None:
    for resource in (pair(killSwitch=True), policy(killSwitch=True)):
        kube.client().patch_status(create(kube, namespace, resource), STATUS)
    [row] = columns(kube.kubectl("get", short, "-o", "wide", namespace=namespace))
    assert (row["KILLED"], row["GENERATION"], row["OBSERVED"], row["APPLIED"]) == ("true", "1", "1", "1")
    assert row["GATEWAYS"] == "2"
    assert short == "sp" or (row["SERVERS"], row["DESIRED"]) == ("1", "2")


@pytest.mark.parametrize("short", ["mp", "sp"])
def test_without_an_operator_no_column_says_that_gateways_have_the_newest_spec(
    kube: KubeApiServer, namespace: str, short: str
) -> None:
    for resource in (pair(), policy()):
        path = create(kube, namespace, resource)
        kube.client().patch_status(path, STATUS)
        kube.client().patch(path, {"spec": {"killSwitch": True}})
    [row] = columns(kube.kubectl("get", short, "-o", "wide", namespace=namespace))
    assert (row["KILLED"], row["GENERATION"], row["OBSERVED"], row["APPLIED"]) == ("true", "2", "1", "1")
    assert "SYNCED" not in row


def test_the_category_lists_both_kinds(kube: KubeApiServer, namespace: str) -> None:
    for resource in (pair(), policy()):
        create(kube, namespace, resource)
    found = json.loads(kube.kubectl("get", "slipstream", "-o", "json", namespace=namespace))["items"]
    assert sorted(item["kind"] for item in found) == ["ModelPair", "SpeculationPolicy"]


def explained(kube: KubeApiServer, field: str) -> str:
    """What `kubectl explain` says; the server publishes new kinds a moment after it serves them."""
    return eventually(lambda: " ".join(kube.kubectl("explain", field).split()), field, ignoring=KubeError)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("modelpair", "A target, its draft, and the engine that serves them."),
        ("modelpair.spec.serving.storage", "Mount path. Sources are relative to it. Default: /models."),
        ("modelpair.spec.engine", "For kind slipstream: Device that the models run on. Default: auto."),
        ("mp.spec.engine.arms.speculative", "Model name on the servers."),
        ("mp.spec.serving.tolerations", "Key of the taint. Default: every taint."),
        ("mp.spec.killSwitch", "true: every request of this pair decodes plainly, at once."),
        ("sp.spec.classes.thresholds", "Minimum of the mean acceptance rate per answer."),
        ("sp.spec.rollback", "Pause before the first retry; it doubles with each retry. Default: 600."),
        ("sp.status.classes.speculative", "Mean acceptance rate per answer."),
    ],
)
def test_kubectl_explain_reads_well(kube: KubeApiServer, field: str, expected: str) -> None:
    assert expected in explained(kube, field)
