"""A Triton with an application in its pipe."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from slipstream_core.manifest.triton_model import (
    APPLICATION,
    EMBEDDED_THREADS,
    VLLM_APPLICATION,
    render_config,
    template_model,
)
from slipstream_core.manifest.vllm_command import Speculation
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.triton_server import TritonPorts, TritonServer
from slipstream_tools.up.triton_vllm import ENVIRONMENT_PARAMETER, write_stub_environment
from slipstream_tools.up.vllm_environment import NICE, VllmInstall
from slipstream_tools.up.vllm_server import VllmLaunch

from tests.support.ports import lasting_ports

MODEL = "slipstream-embedded"
EMBEDDED = {
    APPLICATION: "slipstream_engine.openai.hosted:application",
    "target": "embedded:target",
    "draft": "embedded:draft",
    "draft_kind": "model",
    "threads": str(EMBEDDED_THREADS),
}
_START_TIMEOUT_S = 600.0


def vllm_parameters(install: VllmInstall, folder: Path) -> dict[str, str]:
    """The parameters of a pipe with vLLM, the plugin and the embedded pair. The stub's environment is in `folder`."""
    launch = VllmLaunch(
        model=str(TARGET_DIR),
        served_name=MODEL,
        speculation=Speculation(method="draft_model", tokens=4, draft=str(DRAFT_DIR)),
        threads=EMBEDDED_THREADS,
    )
    return {
        APPLICATION: VLLM_APPLICATION,
        "vllm_args": shlex.join(launch.arguments()),
        "nice": str(NICE),
        ENVIRONMENT_PARAMETER: str(write_stub_environment(install, folder / "stub")),
    }


@contextmanager
def piped(folder: Path, parameters: Mapping[str, str]) -> Iterator[str]:
    """The gRPC address of a Triton whose model `MODEL` runs the application of `parameters`."""
    model = folder / "models" / MODEL
    template = template_model()
    shutil.copytree(template, model, ignore=shutil.ignore_patterns("__pycache__"))
    config = render_config((template / "config.pbtxt").read_text(encoding="utf-8"), MODEL, parameters)
    (model / "config.pbtxt").write_text(config, encoding="utf-8")
    grpc, http, metrics = lasting_ports(3)
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("PYTHONPATH", raising=False)  # the tests' modules are not for the processes of engines
        ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
        server = TritonServer(model_repository=model.parent, run_dir=folder, ports=ports)
    try:
        server.wait_ready(timeout_s=_START_TIMEOUT_S)
        yield f"{ports.host}:{ports.grpc}"
    finally:
        server.stop()
