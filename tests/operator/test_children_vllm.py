"""The children of a pair that vLLM serves, and real vLLM started as they say is in tests/vllm/cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slipstream_operator.main import are_pods_ipv6

from tests.operator.pair_objects import GROUP_SPEC, JSON, SPEC, VLLM_SPEC, children, pair_object, template


def vllm_pair(**changes: JSON) -> JSON:
    return pair_object(VLLM_SPEC, **changes)


def server(raw: JSON) -> JSON:
    [container] = template(raw)["spec"]["containers"]
    return container


def test_vllm_needs_no_files_of_a_model_repository():
    made = children(vllm_pair())
    assert list(made) == ["ServiceAccount", "Service", "PodDisruptionBudget", "Deployment"]
    assert made["Service"]["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert not [volume for volume in template(vllm_pair())["spec"]["volumes"] if "configMap" in volume]


def test_servers_of_another_program_have_another_selector():
    """So that a Service never finds the servers of a pair's former engine."""
    triton, vllm = (children(raw)["Service"]["spec"]["selector"] for raw in (pair_object(), vllm_pair()))
    assert triton["app.kubernetes.io/name"] == "slipstream-triton"
    assert vllm["app.kubernetes.io/name"] == "slipstream-vllm"
    assert vllm.items() <= template(vllm_pair())["metadata"]["labels"].items()


def test_the_command_line_has_model_draft_and_what_the_pair_says():
    engine = {
        "tensorParallelSize": 4,
        "quantization": "fp8",
        "maxModelLen": 32768,
        "maxNumSeqs": 256,
        "dtype": "bfloat16",
        "arguments": ["--enable-prefix-caching", "--gpu-memory-utilization=0.92", "--chat-template=$(X)"],
    }
    container = server(vllm_pair(engine=engine, serving={"gpus": 4, "drainSeconds": 60}))
    assert container["command"] == ["vllm", "serve"]
    model, *arguments = container["args"]
    assert model == "/models/acme/target"
    at = arguments.index("--speculative-config")
    assert json.loads(arguments.pop(at + 1)) == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": "/models/acme/head",
    }
    arguments.pop(at)
    assert arguments == [
        "--served-model-name=acme-70b",
        "--port=8000",
        "--shutdown-timeout=60",
        "--scheduler-cls=slipstream_vllm.Scheduler",
        *("--tensor-parallel-size", "4"),
        *("--dtype", "bfloat16"),
        *("--quantization", "fp8"),
        *("--max-model-len", "32768"),
        *("--max-num-seqs", "256"),
        "--enable-prefix-caching",
        "--gpu-memory-utilization=0.92",
        "--chat-template=$$(X)",  # Kubernetes would expand one
    ]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}


@pytest.mark.parametrize(
    ("draft", "config"),
    [
        ({"kind": "model", "source": "d"}, {"method": "draft_model", "model": "/models/d"}),
        ({"kind": "eagle", "source": "/h"}, {"method": "eagle", "model": "/h"}),
        ({"kind": "mtp", "source": None}, {"method": "mtp"}),
        ({"kind": "suffix", "source": None}, {"method": "suffix"}),
        ({"kind": "ngram", "source": None}, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}),
    ],
)
def test_drafts_have_the_names_of_vllm(draft: JSON, config: JSON):
    arguments = server(vllm_pair(draft=draft))["args"]
    found = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert found == {"num_speculative_tokens": 3, **config}


def test_without_a_draft_vllm_keeps_its_own_scheduler():
    arguments = server(vllm_pair(draft={"kind": "none", "source": None}))["args"]
    assert not [argument for argument in arguments if "speculative" in argument or "scheduler" in argument]


def test_servers_cache_prefixes_unless_the_pair_says_no():
    assert "--no-enable-prefix-caching" not in server(vllm_pair())["args"]
    assert "--no-enable-prefix-caching" in server(vllm_pair(engine={"prefixCaching": False}))["args"]


def test_adapters_are_downloaded_and_named_as_clients_name_them():
    adapters = [{"name": "sql", "source": "hf://acme/sql@v1"}, {"name": "de", "source": "./de"}]
    raw = vllm_pair(engine={"adapters": adapters})
    arguments = server(raw)["args"]
    at = arguments.index("--lora-modules")
    assert [json.loads(each) for each in arguments[at + 1 : at + 3]] == [
        {"name": "acme-70b:sql", "path": "/models/hf/acme/sql/v1"},
        {"name": "acme-70b:de", "path": "/models/de"},
    ]
    assert arguments[at + 3 : at + 5] == ["--enable-lora", "--max-loras=2"]
    download = template(raw)["spec"]["initContainers"][0]
    assert download["args"][-4:] == ["hub", "acme/sql", "v1", "/models/hf/acme/sql/v1"]


def test_a_server_has_the_environment_of_the_pair():
    variables = [
        {"name": "NCCL_DEBUG", "value": "WARN"},
        {"name": "VLLM_API_KEY", "secret": {"name": "keys", "key": "acme"}},
    ]
    environment = server(vllm_pair(serving={"env": variables}))["env"]
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in environment
    reference = {"secretKeyRef": {"name": "keys", "key": "acme"}}
    assert {"name": "VLLM_API_KEY", "valueFrom": reference} in environment
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in environment


_FOLDERS = """
import torch._inductor.runtime.cache_dir_utils as inductor, triton
print(inductor.cache_dir(), triton.knobs.cache.dir)
"""


@pytest.mark.parametrize("spec", [VLLM_SPEC, SPEC], ids=["vllm", "triton"])
def test_compilers_store_their_files_in_one_folder_that_a_volume_can_be_mounted_at(spec: JSON, tmp_path: Path):
    claim = {"name": "cache", "persistentVolumeClaim": {"claimName": "compiled"}}
    mount = {"name": "cache", "mountPath": "/tmp/cache"}
    raw = pair_object(spec, serving={"volumes": [claim], "volumeMounts": [mount]})
    container = server(raw)
    own = {each["name"]: each["value"] for each in container["env"] if each.get("value", "").startswith("/tmp/cache/")}
    folders = {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    assert own.keys() == folders | {"FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH"}
    assert claim in template(raw)["spec"]["volumes"]
    assert container["volumeMounts"][-1] == mount
    env = {**os.environ, **{name: value.replace("/tmp/cache", str(tmp_path)) for name, value in own.items()}}
    said = subprocess.run([sys.executable, "-c", _FOLDERS], env=env, capture_output=True, text=True, check=True).stdout
    assert said.split() == [f"{tmp_path}/inductor", f"{tmp_path}/triton"]


def test_the_key_of_a_server_is_the_token_of_its_control_routes_unless_the_pair_has_one():
    key = {"name": "VLLM_API_KEY", "secret": {"name": "keys", "key": "acme"}}
    reference = {"secretKeyRef": {"name": "keys", "key": "acme"}}
    environment = server(vllm_pair(serving={"env": [key]}))["env"]
    assert {"name": "SLIPSTREAM_VLLM_TOKEN", "valueFrom": reference} in environment
    own = {"name": "SLIPSTREAM_VLLM_TOKEN", "value": "own"}
    environment = server(vllm_pair(serving={"env": [key, own]}))["env"]
    assert [each for each in environment if each["name"] == "SLIPSTREAM_VLLM_TOKEN"] == [own]
    assert "SLIPSTREAM_VLLM_TOKEN" not in {each["name"] for each in server(vllm_pair())["env"]}


@pytest.mark.parametrize("spec", [None, VLLM_SPEC], ids=["slipstream", "vllm"])
def test_pods_have_what_clusters_ask_of_them(spec: JSON | None):
    serving = {
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        "imagePullSecrets": ["registry"],
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "schedulerName": "gang",
    }
    made = template(pair_object(spec, serving=serving))
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert made["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    pod = made["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["priorityClassName"], pod["runtimeClassName"], pod["schedulerName"]) == ("serving", "nvidia", "gang")


def test_clients_reach_the_one_port_of_vllm():
    """The rules are written for Triton's ports, for requests and for metrics."""
    rules = (
        {"from": [{"podSelector": {"matchLabels": {"app": "gateway"}}}], "ports": [{"protocol": "TCP", "port": 8001}]},
        {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 8002}]},
    )
    ingress = children(vllm_pair(), server_ingress=rules)["NetworkPolicy"]["spec"]["ingress"]
    assert ingress[0] == {"from": rules[0]["from"], "ports": [{"protocol": "TCP", "port": 8000}]}
    assert ingress[1]["ports"] == [{"protocol": "TCP", "port": 8000}]


@pytest.mark.parametrize(
    "changes",
    [
        {"target": {"revision": "2"}},
        {"draft": {"revision": "2"}},
        {"maxDraftTokens": 4},
        {"engine": {"maxModelLen": 4096}},
        {"engine": {"adapters": [{"name": "sql", "source": "./sql"}]}},
        {"serving": {"env": [{"name": "A", "value": "1"}]}},
        {"model": "another-name"},
    ],
)
def test_what_vllm_loads_changes_its_template(changes: JSON):
    assert template(vllm_pair(**changes)) != template(vllm_pair())


def test_a_server_of_several_nodes_is_a_group():
    made = children(pair_object(GROUP_SPEC))
    assert list(made) == ["ServiceAccount", "Service", "PodDisruptionBudget", "LeaderWorkerSet"]
    group = made["LeaderWorkerSet"]
    assert (group["apiVersion"], group["metadata"]["name"]) == ("leaderworkerset.x-k8s.io/v1", "slipstream-acme-group")
    templates = group["spec"]["leaderWorkerTemplate"]
    assert templates["size"] == 2
    assert templates["restartPolicy"] == "RecreateGroupOnPodRestart"
    [leader], [worker] = (templates[name]["spec"]["containers"] for name in ("leaderTemplate", "workerTemplate"))
    assert leader["args"][-3:] == ["--nnodes=2", "--node-rank=0", "--master-addr=$(LWS_LEADER_ADDRESS)"]
    assert worker["args"][-4:] == [
        "--nnodes=2",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
        "--headless",
    ]
    assert leader["args"][:-3] == worker["args"][:-4]
    assert leader["resources"] == worker["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert "readinessProbe" in leader
    assert not {"readinessProbe", "startupProbe", "livenessProbe", "ports"} & worker.keys()
    # The watchdog of a worker ends its node, and so the group, also before the server is ready.
    assert templates["workerTemplate"]["spec"]["shareProcessNamespace"]
    assert [part for part in worker["args"] if part.startswith("--scheduler-cls")], "without it there is no watchdog"


def test_workers_get_sigterm_after_the_leader_has_finished_its_answers():
    """The pods of a group are deleted together."""
    pods = children(pair_object(GROUP_SPEC, serving={"drainSeconds": 300}))["LeaderWorkerSet"]["spec"]
    leader, worker = (pods["leaderWorkerTemplate"][name]["spec"] for name in ("leaderTemplate", "workerTemplate"))
    leader_s, worker_s = (
        int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1]) for pod in (leader, worker)
    )
    assert worker_s >= leader_s + 300
    assert worker["terminationGracePeriodSeconds"] == leader["terminationGracePeriodSeconds"] > worker_s


def test_nodes_wait_for_each_other_as_long_as_a_server_may_start():
    own = {"engine": {"arguments": ["--distributed-timeout-seconds=60"]}}
    made = children(pair_object(GROUP_SPEC, serving={"startupSeconds": 5400}, **own))
    for name in ("leaderTemplate", "workerTemplate"):
        [container] = made["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"][name]["spec"]["containers"]
        found = [part for part in container["args"] if part.startswith("--distributed-timeout-seconds")]
        assert found == [
            "--distributed-timeout-seconds=5400",
            "--distributed-timeout-seconds=60",
        ]  # the last one counts
    assert not [part for part in server(vllm_pair())["args"] if "distributed" in part]


def test_vllm_listens_on_ipv6_where_pods_have_it_first():
    assert not [part for part in server(vllm_pair())["args"] if part.startswith("--host")]
    pod = children(vllm_pair(), is_ipv6=True)["Deployment"]["spec"]["template"]["spec"]
    assert "--host=::" in pod["containers"][0]["args"]


@pytest.mark.parametrize(
    ("pod_address", "api_url", "expected"),
    [
        (None, "https://[fd00:10:96::1]:443", True),
        (None, "https://10.96.0.1:443", False),
        (None, "https://kubernetes.example.com", False),
        ("fd00:10:244::7", "https://10.96.0.1:443", True),
        ("10.244.0.7", "https://[fd00:10:96::1]:443", False),
    ],
)
def test_first_family_of_pods_is_that_of_the_operators_own(pod_address: str | None, api_url: str, expected: bool):
    assert are_pods_ipv6(pod_address, api_url) is expected


def test_only_the_leader_of_a_group_compares_tokenizers():
    made = children(pair_object(GROUP_SPEC, target={"tokenizer": "t"}, draft={"kind": "model", "source": "d"}))
    templates = made["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    [preflight] = templates["leaderTemplate"]["spec"]["initContainers"]
    assert preflight["command"] == [
        "python3",
        "-m",
        "slipstream_vllm.preflight",
        "--target=/models/acme/target",
        "--target-tokenizer=/models/t",
        "--draft=/models/d",
        "--report=/dev/termination-log",
    ]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in preflight["env"]
    assert "initContainers" not in templates["workerTemplate"]["spec"]
    for kind in ("eagle", "eagle3", "mtp"):  # heads have the target's tokenizer
        assert "initContainers" not in template(vllm_pair(draft={"kind": kind, "source": "h"}))["spec"]


def test_only_leaders_of_groups_get_requests():
    made = children(pair_object(GROUP_SPEC))
    leader = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert leader.items() <= made["Service"]["spec"]["selector"].items()
    assert not leader.items() <= children(vllm_pair())["Service"]["spec"]["selector"].items()


def test_pods_of_a_group_connect_to_each_other():
    alone = children(vllm_pair(), server_ingress=())["NetworkPolicy"]["spec"]
    assert alone["ingress"] == []
    group = children(pair_object(GROUP_SPEC), server_ingress=())["NetworkPolicy"]["spec"]
    assert group["ingress"] == [{"from": [{"podSelector": group["podSelector"]}]}]


def test_a_group_and_its_service_have_different_names():
    """A LeaderWorkerSet comes with a Service of its own name, for pods that are not ready."""
    for name in ("acme", "a" * 63):
        made = children(pair_object(GROUP_SPEC, name=name))
        group = made["LeaderWorkerSet"]["metadata"]["name"]
        assert group != made["Service"]["metadata"]["name"]
        assert len(group) <= 40


def test_a_group_has_the_pairs_labels_and_stays_together():
    serving = {"labels": {"kueue.x-k8s.io/queue-name": "gpus"}, "annotations": {"example.com/rack": "yes"}}
    made = children(pair_object(GROUP_SPEC, serving=serving))
    metadata = made["LeaderWorkerSet"]["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert metadata["annotations"] == {"example.com/rack": "yes"}
    templates = made["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    [zone, _] = templates["leaderTemplate"]["spec"]["topologySpreadConstraints"]
    assert zone["labelSelector"]["matchLabels"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert "topologySpreadConstraints" not in templates["workerTemplate"]["spec"]


def test_a_variable_of_the_pair_replaces_a_default():
    environment = server(vllm_pair(serving={"env": [{"name": "DO_NOT_TRACK", "value": "0"}]}))["env"]
    assert [each for each in environment if each["name"] == "DO_NOT_TRACK"] == [{"name": "DO_NOT_TRACK", "value": "0"}]


def test_without_serving_a_server_gets_the_gpus_that_vllm_uses():
    container = server(vllm_pair(engine={"tensorParallelSize": 4}, serving=None))
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
