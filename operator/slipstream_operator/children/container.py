"""The containers of a server's pod: their common rights, environment and resources, and the container that serves the
pair: Triton with Slipstream's engine, or stock vLLM with Slipstream's plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import GRPC_PORT_NAME, HTTP_PORT_NAME
from slipstream_core.manifest.serving import EnvVar, Serving
from slipstream_core.manifest.sources import STORE, located
from slipstream_core.manifest.vllm_command import SCHEDULER, adapter_arguments, engine_arguments, speculation_of

from slipstream_operator.children.identity import TRITON, VLLM, Owner, given
from slipstream_operator.children.repository import REPOSITORY, sources_folder, sources_of
from slipstream_operator.types import KubeObject

LEAVE_S = 10
"""The time between the deletion of a server's pod and its SIGTERM: by then no gateway sends it requests."""
FROZEN_END_S = 5
"""The time that a program has to end after its liveness probe has failed."""
GPU = "nvidia.com/gpu"
LEADER_RANK = "0"
HUB_TOKEN = "HF_TOKEN"  # nosec B105 # the name of a variable
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_OF_NODES = ("cpu", "memory", "ephemeral-storage")
_HOME = {"HOME": "/tmp"}  # nosec B108 # a volume of the pod's own: PyTorch and compilers store their files there
# If the image requests it, NVIDIA's container runtime gives all GPUs to a container that requests none.
_NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
_PROBE_PERIOD_S = 5
_EVERY_ADDRESS = "0.0.0.0"  # nosec B104 # a pod's own network
_EVERY_IPV6_ADDRESS = "ipv6:::"
# The folders of compilers. They outlive a restart of the container, and with a volume at CACHE that of the pod.
CACHE = "/tmp/cache"  # nosec B108 # a volume of the pod's own
_CACHES = {
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "FLASHINFER_WORKSPACE_BASE": f"{CACHE}/flashinfer",
    "CUDA_CACHE_PATH": f"{CACHE}/cuda",
}
# The volume has the checkpoints: nothing is looked up elsewhere, and nothing is reported.
_VLLM_SETTINGS = _CACHES | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# The gateways, which alone reach the pod, send one key to vLLM and to the plugin's control routes.
_VLLM_KEY, _PLUGIN_KEY = "VLLM_API_KEY", "SLIPSTREAM_VLLM_TOKEN"


def container(
    name: str,
    *,
    image: str,
    command: Iterable[str],
    env: list[KubeObject],
    mounts: list[KubeObject],
    resources: KubeObject,
    capabilities: Iterable[str] = (),
    **more: Any,
) -> KubeObject:
    """A container with as few rights as the `restricted` pod security standard demands, and `capabilities`. Its root is
    read-only."""
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **given(add=list(capabilities))},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Programs log the reason of their end. The last 2,048 bytes of the log become the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **given(resources=resources),
        **more,
    }


def triton_container(owner: Owner, mounts: list[KubeObject]) -> KubeObject:
    """The image's own Triton program, with only this pair's model.

    On SIGTERM Triton refuses new requests, and ends after its running answers or the exit time-out. Its gRPC port
    serves both address families on `0.0.0.0`. Its HTTP and metrics ports serve one family each: `ipv6:` before an
    address selects IPv6.
    """
    http_address = _EVERY_IPV6_ADDRESS if owner.defaults.is_ipv6 else _EVERY_ADDRESS
    arguments = [
        f"--model-repository={REPOSITORY}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={owner.pair.serving.drain_seconds}",
        f"--grpc-address={_EVERY_ADDRESS}",
        f"--http-address={http_address}",
        f"--metrics-address={http_address}",
        f"--grpc-port={TRITON.ports[GRPC_PORT_NAME]}",
        f"--http-port={TRITON.ports[HTTP_PORT_NAME]}",
        f"--metrics-port={TRITON.ports['metrics']}",
        "--log-info=false",  # tables at this level follow the reason of a failure, and would push it out of the status
    ]
    return _server(owner, ["tritonserver"], arguments, mounts, own=_own_variables(owner.pair), defaults=_CACHES)


def vllm_container(owner: Owner, mounts: list[KubeObject], rank: str | None) -> KubeObject:
    """The image's `vllm serve`, with the pair's model and draft. `rank` is the node's in a server of several nodes.
    Only the leader among them listens for requests; it is ready once all nodes are."""
    own = _own_variables(owner.pair)
    if _VLLM_KEY in own and _PLUGIN_KEY not in own:
        own[_PLUGIN_KEY] = msgspec.structs.replace(own[_VLLM_KEY], name=_PLUGIN_KEY)
    return _server(
        owner,
        ["vllm", "serve"],
        [*map(verbatim, _vllm_arguments(owner)), *_group_arguments(owner.pair.serving, rank)],
        mounts,
        own=own,
        defaults=_VLLM_SETTINGS,
        listens=rank in (None, LEADER_RANK),
    )


def _vllm_arguments(owner: Owner) -> list[str]:
    """The arguments of `vllm serve`. With IPv6 it listens on IPv4 as well, and not on IPv4 alone, since a node's kernel
    may lack IPv6. On SIGTERM vLLM refuses new requests, and ends after its running answers or the time-out. Nodes wait
    for each other as long as a server may start, not PyTorch's 10 minutes. The pair's own arguments come last, and may
    change that."""
    pair, serving = owner.pair, owner.pair.serving
    engine, target, folder = pair.spec.engine, pair.spec.target, sources_folder(pair)
    if not isinstance(engine, VllmEngine) or target is None:
        raise TypeError(f"ModelPair/{owner.name} is not served by vLLM")
    speculation = speculation_of(pair, folder)
    return [
        located(target.source, folder),
        f"--served-model-name={engine.model or pair.spec.model}",
        *(("--host=::",) if owner.defaults.is_ipv6 else ()),
        f"--port={VLLM.ports[HTTP_PORT_NAME]}",
        f"--shutdown-timeout={serving.drain_seconds}",
        *((f"--distributed-timeout-seconds={serving.startup_seconds}",) if serving.nodes > 1 else ()),
        *(() if target.tokenizer is None else (f"--tokenizer={located(target.tokenizer, folder)}",)),
        *(() if speculation is None else (*speculation.arguments(), f"--scheduler-cls={SCHEDULER}")),
        *adapter_arguments(pair, folder),
        *engine_arguments(engine),
    ]


def _group_arguments(serving: Serving, rank: str | None) -> list[str]:
    """The arguments of a node among several. LeaderWorkerSet sets the variables, which Kubernetes expands."""
    if rank is None:
        return []
    headless = [] if rank == LEADER_RANK else ["--headless"]
    return [f"--nnodes={serving.nodes}", f"--node-rank={rank}", "--master-addr=$(LWS_LEADER_ADDRESS)", *headless]


def _server(
    owner: Owner,
    command: list[str],
    arguments: list[str],
    mounts: list[KubeObject],
    *,
    own: Mapping[str, EnvVar],
    defaults: Mapping[str, str],
    listens: bool = True,
) -> KubeObject:
    """The container of the server's program. `own` are the pair's variables, `defaults` those that it may change.
    `listens` False: a worker of a group, without ports and probes."""
    serving, gpus = owner.pair.serving, gpus_of(owner.pair)
    # The pods of a group are deleted together, and its leader needs the workers for its running answers: they get
    # SIGTERM after it.
    leave_s = LEAVE_S if listens else LEAVE_S + serving.drain_seconds
    limits = ({GPU: str(gpus)} if gpus else {}) | serving.resources.limits  # a limit of GPUs is also the request
    return container(
        owner.software.name,
        image=owner.image,
        command=command,
        args=arguments,
        env=[*environment(gpu=gpus > 0), *variables_of(own.values(), defaults)],
        mounts=mounts,
        resources=given(requests=dict(serving.resources.requests), limits=limits),
        capabilities=serving.capabilities,
        lifecycle={"preStop": {"exec": {"command": ["sleep", str(leave_s)]}}},
        **(_listening(owner) if listens else {}),
    )


def _own_variables(pair: ModelPair) -> dict[str, EnvVar]:
    """The pair's variables by name. Credentials for downloads are only for the download."""
    secret = (HUB_TOKEN, *(STORE_KEYS if any(source.startswith(STORE) for source in sources_of(pair)) else ()))
    return {variable.name: variable for variable in pair.serving.env if variable.name not in secret}


def node_resources(pair: ModelPair) -> KubeObject:
    """The server's resources without its devices, so that the pod needs no more than its server."""
    asked = pair.serving.resources
    return given(requests=_of_nodes(asked.requests), limits=_of_nodes(asked.limits))


def _of_nodes(amounts: Mapping[str, str]) -> dict[str, str]:
    return {key: amounts[key] for key in _OF_NODES if key in amounts}


def gpus_of(pair: ModelPair) -> int:
    """The number of GPUs of each server; 0 for an engine that runs on CPUs."""
    engine = pair.spec.engine
    if isinstance(engine, SlipstreamEngine) and engine.device == "cpu":
        return 0
    if isinstance(engine, VllmEngine) and pair.spec.serving is None:
        return engine.tensor_parallel_size * engine.pipeline_parallel_size
    return pair.serving.gpus


def environment(*, gpu: bool) -> list[KubeObject]:
    """The environment of a container."""
    return variables_of((), _HOME if gpu else _HOME | _NO_GPU)


def variables_of(variables: Iterable[EnvVar], defaults: Mapping[str, str]) -> list[KubeObject]:
    """The pair's own variables in the form of a container, and those of `defaults` that it leaves out."""
    own = [_variable(variable) for variable in variables]
    names = {variable["name"] for variable in own}
    return [*({"name": name, "value": value} for name, value in defaults.items() if name not in names), *own]


def verbatim(argument: str) -> str:
    """`argument`, escaped: Kubernetes expands $(NAME) in commands and arguments."""
    return argument.replace("$", "$$")


def _variable(variable: EnvVar) -> KubeObject:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value or ""}
    reference = {"name": variable.secret.name, "key": variable.secret.key}
    return {"name": variable.name, "valueFrom": {"secretKeyRef": reference}}


def _listening(owner: Owner) -> KubeObject:
    """The ports and probes. The other two probes start after the success of the startup probe.

    Triton is ready while all its models are ready. It can be live and not ready for a long time
    (triton-inference-server/server#7154), so missing readiness causes no restart. A restart ends every stream and takes
    minutes to load, so a busy server must not be taken for a frozen one.
    """
    software = owner.software
    failures = -(-owner.pair.serving.startup_seconds // _PROBE_PERIOD_S)
    return {
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in software.ports.items()],
        "startupProbe": _probe(software.ready_path, failures=failures),
        "readinessProbe": _probe(software.ready_path, failures=3),
        "livenessProbe": _probe(software.live_path, failures=software.silence_s // _PROBE_PERIOD_S) | _at_once(owner),
    }


def _at_once(owner: Owner) -> KubeObject:
    """A frozen program does not use the pod's grace period, so the kubelet does not wait for it."""
    return {"terminationGracePeriodSeconds": FROZEN_END_S} if owner.defaults.has_probe_deadlines else {}


def _probe(path: str, *, failures: int) -> KubeObject:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "successThreshold": 1,
        "failureThreshold": failures,
    }
