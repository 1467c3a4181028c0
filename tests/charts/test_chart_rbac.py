"""Who may do what: as it stands in the roles, and as a real API server decides it."""

from __future__ import annotations

from collections.abc import Callable

import helm_python
import pytest

from tests.charts.conftest import JSON, Only, Render
from tests.support.kube import KubeApiServer, KubeClient, KubeError, once_allowed
from tests.support.manifests import manifest
from tests.support.polling import eventually

ACCOUNT = "demo-slipstream"
CLUSTER: JSON = {"watchNamespaces": ["*"]}
READ = {"get", "list", "watch"}
LEASES = "leases.coordination.k8s.io"
KINDS = ("modelpairs", "speculationpolicies")
SPEC = {
    "model": "acme",
    "engine": {"kind": "slipstream"},
    "target": {"source": "embedded:target"},
    "draft": {"kind": "model", "source": "embedded:draft"},
}
PAIR = manifest("ModelPair", "acme", SPEC)


def rights(role: JSON) -> dict[tuple[str, str], set[str]]:
    """Verbs by (group, resource)."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_gateway_reads_two_kinds_and_addresses_and_writes_its_report(render: Render, only: Only) -> None:
    objects = render(CLUSTER)
    assert rights(only(objects, "ClusterRole", "-gateway")) == {
        ("slipstream.dev", "modelpairs"): READ,
        ("slipstream.dev", "speculationpolicies"): READ,
        ("discovery.k8s.io", "endpointslices"): READ,
    }
    assert rights(only(objects, "Role", "-gateway-reports")) == {
        ("coordination.k8s.io", "leases"): {"create", "patch", "delete"}
    }
    bound = [item for item in objects if "gateway" in str(item.get("subjects", ""))]
    assert len(bound) == 2


def test_console_may_patch_pairs_and_read_reports_only_where_values_say_so(render: Render, only: Only) -> None:
    values = {"gateway": {"admin": {"mayKill": True}, "auth": {"existingSecret": {"name": "keys"}}}}
    objects = render({**values, **CLUSTER})
    assert rights(only(objects, "ClusterRole", "-gateway-kills")) == {("slipstream.dev", "modelpairs"): {"patch"}}
    assert rights(only(objects, "Role", "-gateway-reports"))["coordination.k8s.io", "leases"] >= {"list", "watch"}
    assert not any(item["metadata"]["name"].endswith("-gateway-kills") for item in render())
    inside = render({**values, "watchNamespaces": ["team-a", "team-b"]})
    kills = [item for item in inside if item["metadata"]["name"].endswith("-gateway-kills")]
    placed = [("Role", "team-a"), ("Role", "team-b"), ("RoleBinding", "team-a"), ("RoleBinding", "team-b")]
    assert sorted((item["kind"], item["metadata"]["namespace"]) for item in kills) == placed
    [container] = only(objects, "Deployment", "-gateway")["spec"]["template"]["spec"]["containers"]
    assert "--kill-switch" in container["args"]


def test_console_kills_need_keys(render: Render) -> None:
    with pytest.raises(helm_python.HelmError, match="mayKill: requires API keys"):
        render({"gateway": {"admin": {"mayKill": True}, "auth": {"allowAnonymous": True}}})


def test_operator_never_writes_a_parent_nor_reads_a_secret(render: Render, only: Only) -> None:
    objects = render(CLUSTER)
    granted = rights(only(objects, "ClusterRole", "-operator"))
    for kind in KINDS:
        assert granted["slipstream.dev", kind] == READ
        assert "patch" in granted["slipstream.dev", f"{kind}/status"]
    assert not {resource for _, resource in granted} & {"secrets", "roles", "clusterroles", "pods/exec", "nodes"}


def test_people_who_may_kill_may_patch_two_kinds_and_read_reports(render: Render, only: Only) -> None:
    role = only(render(CLUSTER), "ClusterRole", "slipstream-kill")
    assert rights(role) == {
        ("slipstream.dev", "modelpairs"): READ | {"patch"},
        ("slipstream.dev", "speculationpolicies"): READ | {"patch"},
        ("coordination.k8s.io", "leases"): READ,
    }


def test_nobody_is_bound_to_the_killers_role(variant: list[JSON]) -> None:
    bound = [item["roleRef"]["name"] for item in variant if "roleRef" in item]
    assert "slipstream-kill" not in bound


def test_with_namespaces_nothing_is_outside_of_one(render: Render) -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    assert all("namespace" in item["metadata"] for item in objects)
    roles = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in objects if item["kind"] == "Role"}
    for component in ("gateway", "operator"):
        placed = {(namespace, f"serving-{ACCOUNT}-{component}") for namespace in ("team-a", "team-b")}
        assert placed | {("serving", f"{ACCOUNT}-{component}-reports")} <= roles
    assert {(namespace, "slipstream-kill") for namespace in ("team-a", "team-b", "serving")} <= roles


def test_without_a_word_on_namespaces_all_rights_are_in_the_releases_own(render: Render) -> None:
    objects = render()
    assert {item["metadata"].get("namespace") for item in objects} == {"serving"}
    roles = {item["metadata"]["name"] for item in objects if item["kind"] == "Role"}
    for component in ("gateway", "operator"):
        assert {f"{ACCOUNT}-{component}", f"{ACCOUNT}-{component}-reports"} <= roles
    for item in objects:
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith(("-gateway", "-operator")):
            [container] = item["spec"]["template"]["spec"]["containers"]
            assert [each for each in container["args"] if "--namespace" in each] == ["--namespace=serving"]


AGGREGATED = "rbac.authorization.k8s.io/aggregate-to-"


def test_roles_of_the_cluster_collect_rights_on_pairs_and_policies(render: Render, only: Only) -> None:
    changes = {"create", "update", "patch", "delete", "deletecollection"}
    view = (READ, {"get"}, {"view", "edit", "admin"})
    edit = (changes, {"update", "patch"}, {"edit", "admin"})
    for name, (verbs, of_scale, into) in {"view": view, "edit": edit}.items():
        role = only(render(CLUSTER), "ClusterRole", f"-{name}")
        on_objects = {("slipstream.dev", kind): verbs for kind in KINDS}
        assert rights(role) == {**on_objects, ("slipstream.dev", "modelpairs/scale"): of_scale}
        labels = role["metadata"]["labels"].items()
        found = {
            key.removeprefix(AGGREGATED) for key, value in labels if key.startswith(AGGREGATED) and value == "true"
        }
        assert found == into
    for values in ({**CLUSTER, "rbac": {"aggregate": False}}, {"watchNamespaces": ["team-a"]}, {}):
        assert AGGREGATED not in str(render(values))


def test_viewer_reads_and_editor_changes_pairs_and_neither_writes_a_status(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install(CLUSTER)
    people = {}
    for role in ("view", "edit"):
        kube.client().create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": role}})
        # Not by the cluster's own roles: no controller collects anything here.
        roles = ("--clusterrole", f"{namespace}-{ACCOUNT}-{role}", "--serviceaccount", f"{namespace}:{role}")
        kube.kubectl("create", "rolebinding", role, *roles, namespace=namespace)
        people[role] = kube.client(f"{namespace}/{role}")
    once_allowed(lambda: people["edit"].create(pairs(namespace), PAIR))
    assert len(once_allowed(lambda: people["view"].items(pairs(namespace)))) == 1
    for attempt in (
        lambda: people["view"].patch(f"{pairs(namespace)}/acme", {"spec": {"killSwitch": True}}),
        lambda: people["edit"].patch_status(f"{pairs(namespace)}/acme", {"state": "Ready"}),
    ):
        with pytest.raises(KubeError, match="forbidden"):
            attempt()


def test_the_operator_writes_its_own_lease_alone(render: Render, only: Only) -> None:
    reports, create, own = only(render(), "Role", "-operator-reports")["rules"]
    assert reports["verbs"] == ["list", "watch", "delete"]
    assert create["verbs"] == ["create"]
    [operator] = only(render(), "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert (own["verbs"], own["resourceNames"]) == (["get", "update"], ["demo-slipstream-operator"])
    assert "--lease=demo-slipstream-operator" in operator["args"]


@pytest.fixture
def install(kube: KubeApiServer, namespace: str, crds: object, render: Render) -> Callable[[JSON], None]:
    """The roles, bindings and accounts of the chart in the namespace of this test."""

    def installed(values: JSON) -> None:
        kinds = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
        objects = render(values, namespace=namespace)
        kube.client().apply_yaml([item for item in objects if item["kind"] in kinds])

    return installed


def can(kube: KubeApiServer, namespace: str, component: str, verb: str, resource: str, where: str) -> bool:
    """What the server answers to the component's own account, as to `kubectl auth can-i`."""
    name, _, group = resource.partition(".")
    name, _, subresource = name.partition("/")
    asked = {"verb": verb, "resource": name, "subresource": subresource, "group": group, "namespace": where}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    client = kube.client(f"{namespace}/{ACCOUNT}-{component}")
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(client.create(path, {**review, "spec": {"resourceAttributes": asked}})["status"]["allowed"])


def test_accounts_of_the_chart_may_do_that_on_a_real_server(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install(CLUSTER)
    elsewhere = kube.namespace(f"{namespace}-pairs")

    def allowed(component: str, where: str, *wanted: tuple[str, str]) -> list[bool]:
        return [can(kube, namespace, component, verb, resource, where) for verb, resource in wanted]

    # The server hears of new rights a moment after they were written. What is refused below has come with these.
    reads = (
        ("watch", "modelpairs.slipstream.dev"),
        ("list", "speculationpolicies.slipstream.dev"),
        ("watch", "endpointslices.discovery.k8s.io"),
    )
    eventually(lambda: all(allowed("gateway", elsewhere, *reads)))
    eventually(lambda: all(allowed("gateway", namespace, ("create", LEASES), ("delete", LEASES))))
    writes = (
        *(("patch", "deployments.apps"), ("create", "configmaps"), ("create", "events")),
        *(("create", "horizontalpodautoscalers.autoscaling"), ("delete", "scaledobjects.keda.sh")),
        *(("create", "inferencepools.inference.networking.k8s.io"), ("patch", "httproutes.gateway.networking.k8s.io")),
    )
    eventually(lambda: all(allowed("operator", elsewhere, *writes)))
    assert not any(
        allowed(
            "gateway",
            elsewhere,
            ("patch", "modelpairs.slipstream.dev"),
            ("patch", "modelpairs/status.slipstream.dev"),
            ("get", LEASES),
            ("get", "secrets"),
            ("list", "pods"),
        )
    )
    assert not any(
        allowed("operator", elsewhere, ("patch", "modelpairs.slipstream.dev"), ("get", "secrets"), ("list", LEASES))
    )


def test_accounts_have_no_rights_outside_of_the_releases_namespace_unless_it_is_named(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install({})
    elsewhere = kube.namespace(f"{namespace}-other")
    asked = {
        "gateway": [("list", "modelpairs.slipstream.dev"), ("list", "endpointslices.discovery.k8s.io")],
        "operator": [
            *(("list", "modelpairs.slipstream.dev"), ("patch", "modelpairs/status.slipstream.dev")),
            *(("create", "deployments.apps"), ("create", "serviceaccounts"), ("create", LEASES), ("list", "pods")),
        ],
    }
    for component, wanted in asked.items():

        def allowed(where: str, component: str = component, wanted: list[tuple[str, str]] = wanted) -> list[bool]:
            return [can(kube, namespace, component, verb, resource, where) for verb, resource in wanted]

        eventually(lambda: all(allowed(namespace)))
        assert not any(allowed(elsewhere))


def pairs(namespace: str) -> str:
    return f"/apis/slipstream.dev/v1alpha1/namespaces/{namespace}/modelpairs"


def test_gateway_reads_a_pair_and_is_refused_when_it_writes_one(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install({"watchNamespaces": [namespace]})
    kube.client().create(pairs(namespace), PAIR)
    gateway = kube.client(f"{namespace}/{ACCOUNT}-gateway")
    found = once_allowed(lambda: gateway.items(pairs(namespace)))
    assert [pair["metadata"]["name"] for pair in found] == ["acme"]
    for attempt in (
        lambda: gateway.patch(f"{pairs(namespace)}/acme", {"spec": {"killSwitch": False}}),
        lambda: gateway.patch_status(f"{pairs(namespace)}/acme", {"state": "Ready"}),
        lambda: gateway.delete(f"{pairs(namespace)}/acme"),
        lambda: gateway.items(pairs(kube.namespace(f"{namespace}-other"))),
    ):
        with pytest.raises(KubeError) as refused:
            attempt()
        assert refused.value.status == 403


def test_gateway_keeps_its_report_and_no_other_lease_elsewhere(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install({})
    gateway = kube.client(f"{namespace}/{ACCOUNT}-gateway")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "mine"}}
    once_allowed(lambda: gateway.create(leases, lease))
    gateway.patch(f"{leases}/mine", {"spec": {"holderIdentity": "me"}})
    gateway.delete(f"{leases}/mine")
    with pytest.raises(KubeError, match="forbidden"):
        gateway.create(leases.replace(namespace, "default"), lease)


def test_operator_writes_children_and_status_and_never_a_spec(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install({})
    kube.client().create(pairs(namespace), PAIR)
    operator = kube.client(f"{namespace}/{ACCOUNT}-operator")
    child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child"}, "data": {"a": "b"}}
    configs = f"/api/v1/namespaces/{namespace}/configmaps"
    once_allowed(lambda: operator.apply(f"{configs}/child", child, field_manager="slipstream-operator"))
    operator.delete(f"{configs}/child")
    operator.patch_status(f"{pairs(namespace)}/acme", {"state": "Ready"})
    with pytest.raises(KubeError, match="forbidden"):
        operator.patch(f"{pairs(namespace)}/acme", {"spec": {"killSwitch": False}})


def test_killer_patches_a_pair_in_the_namespace_that_was_given(
    kube: KubeApiServer, namespace: str, install: Callable[[JSON], None]
) -> None:
    install(CLUSTER)
    kube.client().create(pairs(namespace), PAIR)
    kube.client().create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "anna"}})
    granted = ("create", "rolebinding", "slipstream-kill", "--clusterrole", "slipstream-kill")
    kube.kubectl(*granted, "--serviceaccount", f"{namespace}:anna", namespace=namespace)
    anna: KubeClient = kube.client(f"{namespace}/anna")
    assert once_allowed(lambda: anna.items(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")) == []
    patch = ("--type", "merge", "--patch", '{"spec":{"killSwitch":true}}')
    kube.kubectl("patch", "modelpair", "acme", *patch, user=f"{namespace}/anna", namespace=namespace)
    assert kube.client().get(f"{pairs(namespace)}/acme")["spec"]["killSwitch"] is True
    with pytest.raises(KubeError, match="forbidden"):
        anna.delete(f"{pairs(namespace)}/acme")
