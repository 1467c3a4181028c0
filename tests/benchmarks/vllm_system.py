"""A running system for benchmarks: real vLLM with the plugin and the embedded pair, and the gateway before it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_gateway.up.gateway_process import GatewayProcess
from slipstream_gateway.up.options import UpOptions
from slipstream_gateway.up.vllm_install import install_vllm
from slipstream_gateway.up.vllm_server import Speculation, VllmLaunch, VllmServer

from tests.benchmarks.system import MODEL, free_ports

START_TIMEOUT_S = 300.0
MANIFEST = """\
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {{name: embedded}}
spec:
  model: {model}
  maxDraftTokens: {draft_tokens}
  engine: {{kind: vllm, endpoints: ["{url}"]}}
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {{name: embedded}}
spec: {{pair: embedded, allowClientMode: true, parityShare: 0}}
"""


class VllmSystem(NamedTuple):
    """Where it listens: vLLM's own URL and the gateway's."""

    vllm_url: str
    gateway_url: str


@contextmanager
def running_vllm_system(*, draft_tokens: int) -> Iterator[VllmSystem]:
    """Start both on free ports; stops them at the end."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        url = cleanup.enter_context(running_vllm(folder, draft_tokens=draft_tokens))
        manifest = folder / "pair.yaml"
        manifest.write_text(MANIFEST.format(model=MODEL, draft_tokens=draft_tokens, url=url))
        [port] = free_ports(1)
        options = UpOptions(manifest=manifest, port=port)
        gateway = GatewayProcess(options=options, run_dir=folder)
        cleanup.callback(gateway.stop)
        gateway.wait_ready(timeout_s=60)
        yield VllmSystem(url, options.url)


@contextmanager
def running_vllm(folder: Path, *, draft_tokens: int, plugin: bool = True) -> Iterator[str]:
    """The URL of a server of the embedded target; it drafts up to `draft_tokens`, 0: it does not speculate. Its log
    goes to `folder`."""
    install = install_vllm(lambda line: print(line, file=sys.stderr, flush=True))
    speculation = Speculation(method="draft_model", tokens=draft_tokens, draft=str(DRAFT_DIR)) if draft_tokens else None
    launch = VllmLaunch(
        model=str(TARGET_DIR),
        served_name=MODEL,
        speculation=speculation,
        plugin=plugin and speculation is not None,
        context_tokens=2048,
    )
    [port] = free_ports(1)
    server = VllmServer(install=install, launch=launch, run_dir=folder, port=port)
    try:
        server.wait_ready(timeout_s=START_TIMEOUT_S)
        yield server.url
    finally:
        server.stop()
