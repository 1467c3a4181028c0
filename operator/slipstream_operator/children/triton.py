"""The container that serves a pair: Triton with Slipstream's engine."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.naming import GRPC_PORT_NAME, HTTP_PORT_NAME
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving

from slipstream_operator.children.identity import TRITON
from slipstream_operator.children.repository import REPOSITORY
from slipstream_operator.children.server import server_container


def triton_container(pair: ModelPair, *, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The container: the image's own Triton program, with only this pair's model."""
    arguments = _arguments(pair.spec.serving or Serving())
    return server_container(pair, TRITON, image=image, command=["tritonserver"], arguments=arguments, mounts=mounts)


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
