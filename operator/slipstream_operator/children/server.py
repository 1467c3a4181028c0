"""The container that serves a pair: Triton with Slipstream's engine."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.naming import GRPC_PORT_NAME
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.probes import liveness_probe, readiness_probe, startup_probe
from slipstream_operator.children.repository import REPOSITORY
from slipstream_operator.children.resources import environment, gpus_of, server_resources
from slipstream_operator.children.security import container_security
from slipstream_operator.children.service import PORTS

SERVER_CONTAINER = "triton"
LEAVE_S = 10
"""The time between the deletion of a server's pod and its SIGTERM: by then no gateway sends it requests."""

_EXIT_MARGIN_S = 15  # Triton unloads its models after the last answer


def server_container(pair: ModelPair, *, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The container: the image's own Triton program, with only this pair's model."""
    serving = pair.spec.serving or Serving()
    container: dict[str, Any] = {
        "name": SERVER_CONTAINER,
        "image": image,
        "command": ["tritonserver"],
        "args": _arguments(serving),
        "env": environment(gpu=gpus_of(pair) > 0),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()],
        "startupProbe": startup_probe(serving.startup_seconds),
        "readinessProbe": readiness_probe(),
        "livenessProbe": liveness_probe(),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(LEAVE_S)]}}},
        "securityContext": container_security(),
        # Triton logs the reason of its end. The last 2,048 bytes of the log become the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if resources := server_resources(pair):
        container["resources"] = resources
    return container


def grace_period_s(serving: Serving) -> int:
    """The grace period of a pod: the time until no gateway sends requests, until the running answers are finished, and
    until Triton has ended."""
    return LEAVE_S + serving.drain_seconds + _EXIT_MARGIN_S


def _arguments(serving: Serving) -> list[str]:
    """Triton's arguments. On SIGTERM Triton refuses new requests, and ends after its running answers or the exit
    time-out."""
    return [
        f"--model-repository={REPOSITORY}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={serving.drain_seconds}",
        f"--grpc-port={PORTS[GRPC_PORT_NAME]}",
        f"--http-port={PORTS['http']}",
        f"--metrics-port={PORTS['metrics']}",
        "--log-info=false",  # tables at this level follow the reason of a failure, and would push it out of the status
    ]
