"""Whatever values say, the chart gives objects that Kubernetes takes and that fit together."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
from helm_python.chart import Chart, lint

from tests.charts.conftest import JSON, Only, Render

CHART = Path(__file__).parents[2] / "charts" / "slipstream"
RECENT = "1.35"
# Kinds that come from elsewhere: no schema of Kubernetes' own.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}
LONG = "a-release-name-that-is-as-long-as-helm-lets-it-be-abc"
WORKLOADS = {"gateway", "operator"}
OWNERS = {"Deployment", "StatefulSet"}


def matches(selector: JSON, labels: JSON) -> bool:
    return selector.items() <= labels.items()


def pod_labels(objects: list[JSON]) -> list[JSON]:
    return [item["spec"]["template"]["metadata"]["labels"] for item in objects if item["kind"] in OWNERS]


def test_every_object_is_valid_for_a_recent_kubernetes(variant: list[JSON]) -> None:
    assert variant
    for item in variant:
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, RECENT, strict=True)


def test_no_two_objects_are_one(variant: list[JSON]) -> None:
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in variant]
    assert len(keys) == len(set(keys))


def test_chart_holds_none_of_its_kinds_and_no_kill_switch(variant: list[JSON], chart: Chart) -> None:
    assert not {item["kind"] for item in variant} & {"ModelPair", "SpeculationPolicy", "CustomResourceDefinition"}
    assert "killSwitch" not in str(variant)
    assert "killSwitch" not in str(chart.schema) + str(chart.values)


def test_services_and_budgets_and_policies_select_their_pods(variant: list[JSON]) -> None:
    pods = pod_labels(variant)
    for item in variant:
        spec = item.get("spec", {})
        selector = {
            "Service": lambda spec: spec["selector"],
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "StatefulSet": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(item["kind"])
        if selector is not None:
            assert sum(matches(selector(spec), labels) for labels in pods) == 1, item["metadata"]["name"]


def test_services_point_at_ports_that_containers_have(variant: list[JSON]) -> None:
    templates = [item["spec"]["template"] for item in variant if item["kind"] in OWNERS]
    for service in (item["spec"] for item in variant if item["kind"] == "Service"):
        [pod] = [pod["spec"] for pod in templates if matches(service["selector"], pod["metadata"]["labels"])]
        names = {port["name"] for container in pod["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= names


def test_service_labels_are_not_those_of_pairs(variant: list[JSON]) -> None:
    """EndpointSlices inherit them, and gateways look for the slices of pairs by `part-of`."""
    assert not any("app.kubernetes.io/part-of" in item["metadata"]["labels"] for item in variant)


def test_service_accounts_of_pods_are_those_that_are_bound(variant: list[JSON]) -> None:
    made = {item["metadata"]["name"] for item in variant if item["kind"] == "ServiceAccount"}
    used = {pod["spec"]["template"]["spec"].get("serviceAccountName") for pod in variant if pod["kind"] == "Deployment"}
    bound = {subject["name"] for item in variant for subject in item.get("subjects", [])}
    assert made <= used
    if made:
        assert bound == made


def test_redis_secret_that_pods_read_is_there(variant: list[JSON]) -> None:
    made = {
        item["metadata"]["name"]: {*item.get("data", ()), *item.get("stringData", ())}
        for item in variant
        if item["kind"] == "Secret"
    }
    for deployment in (item for item in variant if item["kind"] == "Deployment"):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef")
                if reference and reference["name"] != "cache":
                    assert reference["key"] in made[reference["name"]]


@pytest.mark.parametrize(
    ("release", "namespace"),
    [("demo", "serving"), ("slipstream", "n" * 63), ("1e3", "2026"), (LONG, "n" * 63)],
)
def test_names_fit_and_differ_between_releases(render: Render, everything: JSON, release: str, namespace: str) -> None:
    assert len(LONG) == 53
    objects = render(everything, name=release, namespace=namespace)
    for item in objects:
        assert len(item["metadata"]["name"]) <= 63
        if item["kind"] not in FOREIGN:
            kubernetes_validate.validate(item, RECENT, strict=True)
    others = render(everything, name=release[:-1] + "x", namespace=namespace)
    names = {(item["kind"], item["metadata"]["name"]) for item in objects}
    shared = names & {(item["kind"], item["metadata"]["name"]) for item in others}
    assert shared == {("ClusterRole", "slipstream-kill")}


def test_two_releases_in_two_namespaces_share_nothing_of_the_cluster(render: Render) -> None:
    def cluster_wide(namespace: str) -> set[tuple[str, str]]:
        values = {"watchNamespaces": ["*"], "rbac": {"killRole": {"create": False}}}
        objects = render(values, namespace=namespace)
        return {(item["kind"], item["metadata"]["name"]) for item in objects if "namespace" not in item["metadata"]}

    assert cluster_wide("one")
    assert not cluster_wide("one") & cluster_wide("two")


def test_autoscaled_gateway_has_no_number_of_replicas(render: Render, only: Only) -> None:
    fixed = only(render(), "Deployment", "-gateway")
    assert fixed["spec"]["replicas"] == 2
    objects = render({"gateway": {"autoscaling": {"enabled": True}}})
    scaled = only(objects, "Deployment", "-gateway")
    assert "replicas" not in scaled["spec"]
    target = only(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", scaled["metadata"]["name"])


def test_one_operator_works_however_many_run(render: Render, only: Only) -> None:
    for replicas in (1, 2):
        objects = render({"operator": {"replicas": replicas}})
        spec = only(objects, "Deployment", "-operator")["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (replicas, "RollingUpdate")
        assert "--leader-election" in spec["template"]["spec"]["containers"][0]["args"]
    assert only(objects, "PodDisruptionBudget", "-operator")["spec"]["maxUnavailable"] == 1


def test_hung_processes_are_replaced_without_their_time_to_drain(render: Render) -> None:
    """A liveness kill waits for the grace period of the pod, or of the probe. Redis has to answer, not just to accept:
    the kernel accepts for a frozen process."""
    containers = [
        container
        for item in render()
        if item["kind"] in ("Deployment", "StatefulSet")
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    assert {container["name"] for container in containers} == {"gateway", "operator", "redis"}
    for container in containers:
        probe = container["livenessProbe"]
        assert probe["terminationGracePeriodSeconds"] == 5
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        if container["name"] != "operator":  # clients wait for these two
            frozen_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
            assert frozen_s + probe["terminationGracePeriodSeconds"] <= 40
        if container["name"] == "redis":
            assert probe["exec"]["command"] == container["readinessProbe"]["exec"]["command"] == ["redis-cli", "PING"]


def test_gateway_has_time_to_drain(render: Render, only: Only) -> None:
    values = {"gateway": {"preStopSeconds": 7, "drainSeconds": 45}}
    pod = only(render(values), "Deployment", "-gateway")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert "--drain=45" in container["args"]
    assert "--leave=7" in container["args"]
    assert pod["terminationGracePeriodSeconds"] == 7 + 45 + 10
    values["gateway"]["extProc"] = {"enabled": True}
    pod = only(render(values), "Deployment", "-gateway")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 7 + 2 * 45 + 10


def test_gateway_knows_its_pod_and_keeps_its_configuration(render: Render, only: Only) -> None:
    pod = only(render(), "Deployment", "-gateway")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    sources = {entry["name"]: entry["valueFrom"] for entry in container["env"]}
    paths = {name: source["fieldRef"]["fieldPath"] for name, source in sources.items() if "fieldRef" in source}
    assert paths == {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    [snapshot] = [arg for arg in container["args"] if arg.startswith("--snapshot=")]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert snapshot.startswith(f"--snapshot={mounts['snapshot']}/")
    assert {"name": "snapshot", "emptyDir": {"sizeLimit": "64Mi"}} in pod["volumes"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
    assert probes == {"liveness": "/health/live", "readiness": "/health/ready"}


def test_namespaces_reach_both_processes_and_only_they(render: Render, only: Only) -> None:
    objects = render({"watchNamespaces": ["team-a", "team-b"]})
    for suffix in WORKLOADS:
        [container] = only(objects, "Deployment", suffix)["spec"]["template"]["spec"]["containers"]
        assert [arg for arg in container["args"] if arg.startswith("--namespace=")] == [
            "--namespace=team-a",
            "--namespace=team-b",
        ]
        assert "--report-namespace=serving" in container["args"]


def test_digest_goes_before_the_tag_and_the_tag_follows_the_chart(render: Render, only: Only, chart: Chart) -> None:
    def image(values: JSON) -> str:
        pod = only(render(values), "Deployment", "-gateway")["spec"]["template"]["spec"]
        return str(pod["containers"][0]["image"])

    assert image({}) == f"slipstream-gateway:{chart.metadata['appVersion']}"
    assert image({"gateway": {"image": {"tag": "1.2"}}}) == "slipstream-gateway:1.2"
    digest = "sha256:" + "a" * 64
    assert image({"gateway": {"image": {"tag": "1.2", "digest": digest}}}) == f"slipstream-gateway@{digest}"


def test_operator_is_told_the_image_of_triton(render: Render, only: Only) -> None:
    objects = render({"triton": {"image": {"repository": "mine/triton", "tag": "9"}}})
    [container] = only(objects, "Deployment", "-operator")["spec"]["template"]["spec"]["containers"]
    assert "--triton-image=mine/triton:9" in container["args"]


def test_pods_start_again_when_the_address_of_redis_changes_and_not_otherwise(render: Render, only: Only) -> None:
    def template(values: JSON) -> JSON:
        found: JSON = only(render(values), "Deployment", "-gateway")["spec"]["template"]
        return found

    assert template({}) == template({})  # the password is made anew by each of these renderings
    one, other = ({"redis": {"url": f"redis://{host}:6379"}} for host in ("one", "other"))
    assert template(one) != template(other)


def test_labels_of_values_never_part_pods_from_their_selectors(render: Render, only: Only) -> None:
    own = {"app.kubernetes.io/component": "mine", "app.kubernetes.io/name": "mine", "team": "a"}
    objects = render({"commonLabels": own, "gateway": {"podLabels": own}})
    deployment = only(objects, "Deployment", "-gateway")
    [labels] = [labels for labels in pod_labels(objects) if labels["app.kubernetes.io/component"] == "gateway"]
    assert matches(deployment["spec"]["selector"]["matchLabels"], labels)
    assert labels["team"] == deployment["metadata"]["labels"]["team"] == "a"
    assert deployment["metadata"]["labels"]["app.kubernetes.io/component"] == "gateway"


def test_upgrade_of_the_chart_alone_restarts_no_pod(render: Render) -> None:
    assert not any(
        "helm.sh/chart" in labels or "app.kubernetes.io/version" in labels for labels in pod_labels(render())
    )


def test_ways_in_from_outside_lead_to_the_service_and_to_the_api_alone(
    render: Render, only: Only, everything: JSON
) -> None:
    objects = render(everything)
    service = only(objects, "Service", "-gateway")
    [rule] = only(objects, "Ingress")["spec"]["rules"]
    [path] = rule["http"]["paths"]
    backend = path["backend"]["service"]
    assert (path["path"], path["pathType"], rule["host"]) == ("/v1", "Prefix", "llm.example.com")
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    route = only(objects, "HTTPRoute")["spec"]
    [rule] = route["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]
    assert rule["timeouts"] == {"request": "900s"}
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways"}]


def test_lint_finds_nothing_but_the_missing_icon(everything: JSON) -> None:
    for values in ({}, everything):
        gateway = {"auth": {"allowAnonymous": True}, **values.get("gateway", {})}
        report = lint(CHART, {**values, "gateway": gateway}, strict=True)
        assert report["errors"] == []
        assert [message["error"] for message in report["messages"]] == ["icon is recommended"]
