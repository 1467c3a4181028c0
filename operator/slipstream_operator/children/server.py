"""What the containers of all servers have in common, whichever program runs in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.identity import Software
from slipstream_operator.children.lifecycle import leave_hook
from slipstream_operator.children.probes import liveness_probe, readiness_probe, startup_probe
from slipstream_operator.children.resources import server_environment, server_resources
from slipstream_operator.children.security import container_security


def server_container(
    pair: ModelPair,
    software: Software,
    *,
    image: str,
    command: Sequence[str],
    arguments: Sequence[str],
    mounts: Sequence[Mapping[str, Any]],
    variables: Mapping[str, str] = MappingProxyType({}),
    listens: bool = True,
) -> dict[str, Any]:
    """The container. `variables` are defaults of its environment. `listens` False: a worker of a group, without ports
    and probes."""
    serving = pair.spec.serving or Serving()
    container: dict[str, Any] = {
        "name": software.name,
        "image": image,
        "command": list(command),
        "args": list(arguments),
        "env": server_environment(pair, variables),
        **(_listening(software, serving) if listens else {}),
        "lifecycle": leave_hook(serving, is_worker=not listens),
        "securityContext": container_security(),
        # The program logs the reason of its end. The last 2,048 bytes of the log become the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(mounts),
    }
    if resources := server_resources(pair):
        container["resources"] = resources
    return container


def _listening(software: Software, serving: Serving) -> dict[str, Any]:
    return {
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in software.ports.items()],
        "startupProbe": startup_probe(software.ready_path, serving.startup_seconds),
        "readinessProbe": readiness_probe(software.ready_path),
        "livenessProbe": liveness_probe(software.live_path),
    }
