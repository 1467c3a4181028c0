"""The container that serves a pair: Triton with Slipstream's engine."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.naming import GRPC_PORT_NAME, HTTP_PORT_NAME
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.identity import TRITON
from slipstream_operator.children.lifecycle import leave_hook
from slipstream_operator.children.probes import liveness_probe, readiness_probe, startup_probe
from slipstream_operator.children.repository import REPOSITORY
from slipstream_operator.children.resources import server_environment, server_resources
from slipstream_operator.children.security import container_security


def triton_container(pair: ModelPair, *, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The container: the image's own Triton program, with only this pair's model."""
    serving = pair.spec.serving or Serving()
    container: dict[str, Any] = {
        "name": TRITON.name,
        "image": image,
        "command": ["tritonserver"],
        "args": _arguments(serving),
        "env": server_environment(pair),
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in TRITON.ports.items()],
        "startupProbe": startup_probe("/v2/health/ready", serving.startup_seconds),
        "readinessProbe": readiness_probe("/v2/health/ready"),
        "livenessProbe": liveness_probe("/v2/health/live"),
        "lifecycle": leave_hook(),
        "securityContext": container_security(),
        # Triton logs the reason of its end. The last 2,048 bytes of the log become the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if resources := server_resources(pair):
        container["resources"] = resources
    return container


def _arguments(serving: Serving) -> list[str]:
    """Triton's arguments. On SIGTERM Triton refuses new requests, and ends after its running answers or the exit
    time-out."""
    return [
        f"--model-repository={REPOSITORY}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={serving.drain_seconds}",
        f"--grpc-port={TRITON.ports[GRPC_PORT_NAME]}",
        f"--http-port={TRITON.ports[HTTP_PORT_NAME]}",
        f"--metrics-port={TRITON.ports['metrics']}",
        "--log-info=false",  # tables at this level follow the reason of a failure, and would push it out of the status
    ]
