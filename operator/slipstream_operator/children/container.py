"""The containers of a server's pod: their common rights, environment and resources, and the server's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import EnvVar, Resources, Serving
from slipstream_core.manifest.sources import STORE

from slipstream_operator.children.identity import Software
from slipstream_operator.children.repository import sources_of
from slipstream_operator.types import KubeObject

LEAVE_S = 10
"""The time between the deletion of a server's pod and its SIGTERM: by then no gateway sends it requests."""
GPU = "nvidia.com/gpu"
HUB_TOKEN = "HF_TOKEN"  # nosec B105 # the name of a variable
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_OF_NODES = ("cpu", "memory", "ephemeral-storage")
_HOME = {"HOME": "/tmp"}  # nosec B108 # a volume of the pod's own: PyTorch and compilers store their files there
# If the image requests it, NVIDIA's container runtime gives all GPUs to a container that requests none.
_NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
_STARTUP_PERIOD_S = 5


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
    added = list(capabilities)
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "env": env,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Programs log the reason of their end. The last 2,048 bytes of the log become the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **({"resources": resources} if resources else {}),
        **more,
    }


def server_container(
    pair: ModelPair,
    software: Software,
    *,
    image: str,
    command: Iterable[str],
    arguments: Iterable[str],
    mounts: list[KubeObject],
    variables: Mapping[str, str] = MappingProxyType({}),
    copies: Mapping[str, str] = MappingProxyType({}),
    listens: bool = True,
) -> KubeObject:
    """The container of the server's program. `variables` are defaults of its environment; `copies` are defaults with
    the value of another of the pair's variables, by its name, if it has that. `listens` False: a worker of a group,
    without ports and probes."""
    serving, gpus = pair.spec.serving or Serving(), gpus_of(pair)
    # The pods of a group are deleted together, and its leader needs the workers for its running answers: they get
    # SIGTERM after it.
    leave_s = LEAVE_S if listens else LEAVE_S + serving.drain_seconds
    # Credentials for downloads are only for the download.
    secret = (HUB_TOKEN, *(STORE_KEYS if any(source.startswith(STORE) for source in sources_of(pair)) else ()))
    own = {variable.name: variable for variable in serving.env if variable.name not in secret}
    for name, other in copies.items():
        if other in own and name not in own:
            own[name] = msgspec.structs.replace(own[other], name=name)
    limits = ({GPU: str(gpus)} if gpus else {}) | serving.resources.limits  # a limit of GPUs is also the request
    return container(
        software.name,
        image=image,
        command=command,
        args=list(arguments),
        env=[*environment(gpu=gpus > 0), *variables_of(own.values(), variables)],
        mounts=mounts,
        resources=_given(serving.resources.requests, limits),
        capabilities=serving.capabilities,
        lifecycle={"preStop": {"exec": {"command": ["sleep", str(leave_s)]}}},
        **(_listening(software, serving) if listens else {}),
    )


def node_resources(pair: ModelPair) -> KubeObject:
    """The server's resources without its devices, so that the pod needs no more than its server."""
    asked = (pair.spec.serving or Serving()).resources
    return _given(*({key: held[key] for key in _OF_NODES if key in held} for held in (asked.requests, asked.limits)))


def gpus_of(pair: ModelPair) -> int:
    """The number of GPUs of each server; 0 for an engine that runs on CPUs."""
    engine = pair.spec.engine
    if isinstance(engine, SlipstreamEngine) and engine.device == "cpu":
        return 0
    if isinstance(engine, VllmEngine) and pair.spec.serving is None:
        return engine.tensor_parallel_size * engine.pipeline_parallel_size
    return (pair.spec.serving or Serving()).gpus


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


def _given(requests: dict[str, str], limits: dict[str, str]) -> KubeObject:
    asked = Resources(requests=requests, limits=limits)
    return {name: dict(held) for name, held in (("requests", asked.requests), ("limits", asked.limits)) if held}


def _listening(software: Software, serving: Serving) -> KubeObject:
    """The ports and probes. The other two probes start after the success of the startup probe.

    Triton is ready while all its models are ready. It can be live and not ready for a long time
    (triton-inference-server/server#7154), so missing readiness causes no restart. The limits of liveness are generous:
    a restart ends every stream and takes minutes to load, and a busy server may be slow to answer.
    """
    failures = -(-serving.startup_seconds // _STARTUP_PERIOD_S)
    return {
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in software.ports.items()],
        "startupProbe": _probe(software.ready_path, period_s=_STARTUP_PERIOD_S, timeout_s=5, failures=failures),
        "readinessProbe": _probe(software.ready_path, period_s=5, timeout_s=5, failures=3),
        "livenessProbe": _probe(software.live_path, period_s=20, timeout_s=10, failures=9),
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> KubeObject:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "successThreshold": 1,
        "failureThreshold": failures,
    }
