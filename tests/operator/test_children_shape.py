"""What the children of a pair look like, and what they follow from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.pair_objects import (
    EMBEDDED_SPEC,
    EXTERNAL_SPEC,
    GROUP_SPEC,
    JSON,
    UID,
    VLLM_SPEC,
    children,
    pair_object,
    template,
)


def server(raw: JSON) -> JSON:
    [container] = template(raw)["spec"]["containers"]
    return container


def test_the_children_come_in_the_order_in_which_they_need_each_other():
    kinds = list(children(pair_object()))
    assert kinds == ["ServiceAccount", "ConfigMap", "Service", "PodDisruptionBudget", "Deployment"]


def test_servers_have_a_network_policy_where_the_operator_has_rules():
    rule = {"from": [{"podSelector": {}}], "ports": [{"port": 8001}]}
    made = children(pair_object(), server_ingress=(rule,))
    policy = made["NetworkPolicy"]["spec"]
    assert policy["ingress"] == [rule]
    assert policy["podSelector"] == made["Deployment"]["spec"]["selector"]
    assert children(pair_object(), server_ingress=())["NetworkPolicy"]["spec"]["ingress"] == []  # nobody gets in


def test_every_child_has_the_pairs_name_namespace_labels_and_owner():
    for child in children(pair_object()).values():
        metadata = child["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("slipstream-acme", "prod")
        assert metadata["labels"] == {
            "app.kubernetes.io/name": "slipstream-triton",
            "app.kubernetes.io/part-of": "slipstream",
            "app.kubernetes.io/component": "triton",
            "app.kubernetes.io/managed-by": "slipstream-operator",
            "slipstream.dev/pair": "acme",
        }
        [owner] = metadata["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("ModelPair", "acme", UID, True)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(pair_object(EXTERNAL_SPEC), id="external"),
        pytest.param(pair_object(engine={"endpoints": ["grpc://triton:8001"]}, serving=None), id="endpoints"),
    ],
)
def test_a_pair_with_servers_elsewhere_has_no_children(raw: JSON):
    assert children(raw) == {}


def test_names_stay_labels_and_differ_where_pairs_have_long_names():
    names = ["a" * 63, "a" * 62 + "b", "a" * 52, "a" * 53]
    made = [children(pair_object(name=name)) for name in names]
    called = {child["metadata"]["name"] for each in made for child in each.values()}
    assert len(called) == len(names)
    assert all(len(name) <= 63 for name in called)
    assert len({each["Service"]["spec"]["selector"]["slipstream.dev/pair"] for each in made}) == len(names)


def test_the_selector_never_follows_the_spec():
    changed = pair_object(model="other", target={"revision": "2"}, serving={"image": "x:1"}, maxDraftTokens=3)
    before, after = (children(raw)["Deployment"]["spec"]["selector"] for raw in (pair_object(), changed))
    assert before == after
    assert before["matchLabels"].items() <= template(changed)["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "changes",
    [
        {"target": {"revision": "2"}},
        {"target": {"source": "acme/other"}},
        {"target": {"tokenizer": "acme/tokenizer"}},
        {"draft": {"source": "acme/other"}},
        {"draft": {"revision": "2"}},
        {"draft": {"kind": "ngram", "source": None}},
        {"draft": {"kind": "hybrid"}},
        {"draft": {"alternatives": ["acme/tuned"]}},
        {"draft": {"candidates": "acme/trained"}},
        {"maxDraftTokens": 3},
        {"engine": {"maxConcurrency": 3}},
        {"serving": {"storage": {"claim": "weights", "mountPath": "/elsewhere"}}},
        {"serving": {"image": "registry/triton:2"}},
    ],
)
def test_what_a_server_loads_changes_its_template(changes: JSON):
    assert template(pair_object(**changes)) != template(pair_object())


@pytest.mark.parametrize(
    "changes",
    [
        {"serving": {"replicas": 7}},
        {"serving": {"replicas": None}},
        {"killSwitch": True},
        {"pricePerGpuHour": 3.0},
        {"model": "another-name-for-clients"},
    ],
)
def test_what_a_server_does_not_load_leaves_its_template(changes: JSON):
    assert template(pair_object(**changes)) == template(pair_object())


def test_a_label_of_the_pair_leaves_the_template():
    raw = pair_object()
    raw["metadata"]["labels"] = {"team": "search"}
    assert template(raw) == template(pair_object())


def test_sources_are_below_the_volumes_mount_path():
    serving = {"storage": {"claim": "weights", "mountPath": "/mnt/models"}}
    raw = pair_object(draft={"source": "/baked/in"}, serving=serving)
    config = children(raw)["ConfigMap"]["data"]["config.pbtxt"]
    assert 'key: "target" value { string_value: "/mnt/models/acme/target" }' in config
    assert 'key: "draft" value { string_value: "/baked/in" }' in config
    spec = template(raw)["spec"]
    [volume] = [volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    for container in (*spec["containers"], *spec["initContainers"]):
        mount = {"name": volume["name"], "mountPath": "/mnt/models", "readOnly": True}
        assert mount in container["volumeMounts"]


def test_a_draft_that_does_not_fit_leaves_the_target_served():
    config = children(pair_object())["ConfigMap"]["data"]["config.pbtxt"]
    assert 'key: "on_draft_mismatch" value { string_value: "plain" }' in config


def test_only_a_draft_model_is_compared_beforehand():
    [preflight] = template(pair_object())["spec"]["initContainers"]
    assert preflight["command"] == [
        "python",
        "-m",
        "slipstream_engine.preflight",
        "--target=/models/acme/target",
        "--draft=/models/acme/draft",
        "--report=/dev/termination-log",
    ]
    assert preflight["terminationMessagePath"] == "/dev/termination-log"
    assert template(pair_object(draft={"kind": "hybrid"}))["spec"]["initContainers"] == [preflight]
    for kind in ("ngram", "none"):
        assert "initContainers" not in template(pair_object(draft={"kind": kind, "source": None}))["spec"]


def test_further_drafts_are_compared_and_named():
    raw = pair_object(draft={"alternatives": ["acme/tuned", "hf://acme/small@v2"]})
    *_, preflight = template(raw)["spec"]["initContainers"]
    alternatives = [part for part in preflight["command"] if part.startswith("--alternative")]
    assert alternatives == ["--alternative=/models/acme/tuned", "--alternative=/models/hf/acme/small/v2"]
    config = children(raw)["ConfigMap"]["data"]["config.pbtxt"]
    assert r'key: "more_drafts" value { string_value: "/models/acme/tuned\n/models/hf/acme/small/v2" }' in config
    assert r'key: "draft_names" value { string_value: "draft\ntuned\nsmall" }' in config


def test_a_draft_alone_has_the_hash_of_earlier_versions():
    """Another hash would replace the servers of every pair when the operator is upgraded."""
    annotations = template(pair_object(draft={"revision": None}, target={"revision": None}))["metadata"]["annotations"]
    assert annotations["slipstream.dev/weights-hash"] == "09cc18efb7bf2299"


def test_a_source_is_not_expanded_as_a_command():
    [preflight] = template(pair_object(draft={"source": "/cost$(HOME)$$"}))["spec"]["initContainers"]
    assert "--draft=/cost$$(HOME)$$$$" in preflight["command"]


def test_pods_keep_to_the_restricted_standard():
    spec = template(pair_object())["spec"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 1000)
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    for container in (*spec["containers"], *spec["initContainers"]):
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in spec["volumes"]


def test_pods_get_what_their_pair_asks_beyond_the_standard():
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    spec = template(
        pair_object(
            serving={
                "serviceAccountName": "weights-reader",
                "podSecurityContext": {"runAsUser": 5, "fsGroup": 0, "supplementalGroups": [7]},
                "capabilities": ["IPC_LOCK"],
                "volumes": [volume],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                "shmSize": "16Gi",
                "tmpSize": "20Gi",
                "hostNetwork": True,
            }
        )
    )["spec"]
    assert spec["serviceAccountName"] == "weights-reader"
    users = {name: spec["securityContext"].get(name) for name in ("runAsUser", "runAsGroup", "fsGroup")}
    assert users == {"runAsUser": 5, "runAsGroup": None, "fsGroup": 0}
    assert list(spec["securityContext"]["supplementalGroups"]) == [7]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    sizes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in spec["volumes"] if "emptyDir" in each}
    assert sizes == {"shm": "16Gi", "tmp": "20Gi"}
    assert volume in spec["volumes"]
    [container] = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
    for before in spec["initContainers"]:
        assert before["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_an_empty_security_context_leaves_the_users_to_the_platform():
    security = template(pair_object(serving={"podSecurityContext": {}}))["spec"]["securityContext"]
    assert security.keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}


def test_an_account_has_annotations_or_is_another_s():
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/weights"}
    account = children(pair_object(serving={"serviceAccountAnnotations": role}))["ServiceAccount"]
    assert account["metadata"]["annotations"] == role
    assert "annotations" not in children(pair_object())["ServiceAccount"]["metadata"]
    assert "ServiceAccount" not in children(pair_object(serving={"serviceAccountName": "own"}))


def test_servers_get_the_time_that_loading_and_leaving_take():
    serving = {"startupSeconds": 3601, "drainSeconds": 300}
    raw = pair_object(serving=serving)
    container, pod = server(raw), template(raw)["spec"]
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 3601
    assert startup["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert "--exit-timeout-secs=300" in container["args"]
    leave_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > leave_s + 300
    deployment = children(raw)["Deployment"]["spec"]
    assert deployment["progressDeadlineSeconds"] > 3601
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(
    ("update", "of_deployment", "of_group"),
    [
        (
            {"maxSurge": 0, "maxUnavailable": 2},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}},
            {"maxSurge": 0, "maxUnavailable": 2},
        ),
        ({"strategy": "Recreate"}, {"type": "Recreate"}, {"maxSurge": 0, "maxUnavailable": "100%"}),
    ],
    ids=["without additional servers", "all at once"],
)
def test_servers_are_replaced_as_the_pair_says(update: JSON, of_deployment: JSON, of_group: JSON):
    serving = {"update": update}
    assert children(pair_object(serving=serving))["Deployment"]["spec"]["strategy"] == of_deployment
    group = children(pair_object(GROUP_SPEC, serving=serving))["LeaderWorkerSet"]["spec"]
    assert group["rolloutStrategy"]["rollingUpdateConfiguration"] == of_group


@pytest.mark.parametrize(
    ("raw", "limits", "sees_gpus"),
    [
        pytest.param(pair_object(), {"nvidia.com/gpu": "1"}, True, id="one by default"),
        pytest.param(
            pair_object(VLLM_SPEC, engine={"tensorParallelSize": 4}, serving={"gpus": 4}),
            {"nvidia.com/gpu": "4"},
            True,
            id="several",
        ),
        pytest.param(pair_object(serving={"gpus": 0}), {}, False, id="none"),
        pytest.param(pair_object(EMBEDDED_SPEC), {}, False, id="an engine on CPUs needs none"),
    ],
)
def test_gpus_are_limits(raw: JSON, limits: JSON, sees_gpus: bool):
    container = server(raw)
    assert container.get("resources", {}).get("limits", {}) == limits
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert (hidden not in container["env"]) == sees_gpus


def test_what_resources_say_of_gpus_goes_before_gpus():
    resources = {"limits": {"nvidia.com/gpu": "2", "memory": "64Gi"}, "requests": {"cpu": "8", "memory": "32Gi"}}
    raw = pair_object(serving={"resources": resources})
    assert server(raw)["resources"] == resources
    [preflight] = template(raw)["spec"]["initContainers"]
    assert preflight["resources"] == {
        "requests": {"cpu": "8", "memory": "32Gi"},
        "limits": {"memory": "64Gi"},
    }


def test_placement_goes_to_the_pod_as_it_is():
    affinity: dict[str, Any] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
            }
        }
    }
    serving = {
        "nodeSelector": {"pool": "h200"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": affinity,
    }
    spec = template(pair_object(serving=serving))["spec"]
    assert spec["nodeSelector"] == {"pool": "h200"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert spec["affinity"] == affinity


def test_gateways_and_prometheus_find_ports_by_name():
    ports = {port["name"]: port for port in children(pair_object())["Service"]["spec"]["ports"]}
    assert {name: port["port"] for name, port in ports.items()} == {"grpc": 8001, "http": 8000, "metrics": 8002}
    inside = {port["name"]: port["containerPort"] for port in server(pair_object())["ports"]}
    assert {port["targetPort"]: port["port"] for port in ports.values()} == inside


@pytest.mark.parametrize(("spec", "kept_s"), [(EMBEDDED_SPEC, 45), (VLLM_SPEC, 200)], ids=["triton", "vllm"])
def test_a_server_that_does_not_answer_is_killed_without_its_grace_period(spec: JSON, kept_s: int):
    """The front end of vLLM may be busy for longer; the plugin's watchdog finds one that is frozen."""
    raw = pair_object(spec, serving={"drainSeconds": 300})
    probe = server(raw)["livenessProbe"]
    silence_s = probe["failureThreshold"] * probe["periodSeconds"]
    assert 30 <= silence_s + probe["timeoutSeconds"] + probe["terminationGracePeriodSeconds"] <= kept_s
    assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    assert template(raw)["spec"]["shareProcessNamespace"], "else its watchdog cannot kill the first process"


def test_probes_of_an_old_api_server_have_no_grace_period():
    old = children(pair_object(), pdb_api_version="policy/v1beta1")["Deployment"]["spec"]["template"]["spec"]
    assert "terminationGracePeriodSeconds" not in old["containers"][0]["livenessProbe"]


def test_the_budgets_version_is_the_servers():
    made = children(pair_object(), pdb_api_version="policy/v1beta1")["PodDisruptionBudget"]
    assert (made["apiVersion"], made["spec"]["maxUnavailable"]) == ("policy/v1beta1", 1)


def owned(*entries: tuple[str, str], replicas: int = 5) -> JSON:
    fields = [
        {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        for manager, operation in entries
    ]
    return {"metadata": {"managedFields": fields}, "spec": {"replicas": replicas}}


OURS, AUTOSCALER = ("slipstream-operator", "Apply"), ("kube-controller-manager", "Update")


@pytest.mark.parametrize(
    ("live", "written"),
    [
        pytest.param(None, None, id="new: the API server's default"),
        pytest.param(owned(), None, id="nobody's"),
        pytest.param(owned(AUTOSCALER), None, id="an autoscaler's"),
        pytest.param(owned(OURS), 5, id="ours alone: dropped, it would fall to 1"),
        pytest.param(owned(OURS, AUTOSCALER), None, id="taken over"),
        pytest.param({**owned(OURS), "spec": {"replicas": 0}}, 1, id="ours alone at zero: nothing keeps it there"),
    ],
)
def test_replicas_are_left_to_whoever_sets_them(live: JSON | None, written: int | None):
    raw = pair_object(serving={"replicas": None})
    assert children(raw, live=live)["Deployment"]["spec"].get("replicas") == written


def test_the_pairs_own_number_of_replicas_goes_before_anybody_elses():
    assert children(pair_object(serving={"replicas": 0}), live=owned(AUTOSCALER))["Deployment"]["spec"]["replicas"] == 0
