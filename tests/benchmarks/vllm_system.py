"""A running system for benchmarks: real vLLM with the plugin and the embedded pair, and the gateway before it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions

from tests.benchmarks.system import MODEL, free_ports
from tests.benchmarks.vllm_servers import DRAFT_TOKENS, servers

CHECKED_S = 300.0
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
spec: {{pair: embedded, allowClientMode: true, parityShare: 0{policy}}}
"""


@contextmanager
def running_vllm_gateway(policy: str = "") -> Iterator[str]:
    """The URL of a gateway before a vLLM server, on free ports, once it has checked that server. `policy` has further
    fields of the policy: `decision: cautious, explorationShare: 0.1`."""
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        [url] = cleanup.enter_context(servers("speculative"))
        manifest = folder / "pair.yaml"
        more = f", {policy}" if policy else ""
        manifest.write_text(MANIFEST.format(model=MODEL, draft_tokens=DRAFT_TOKENS, url=url, policy=more))
        [port] = free_ports(1)
        options = UpOptions(manifest=manifest, port=port)
        gateway = GatewayProcess(options=options, run_dir=folder)
        cleanup.callback(gateway.stop)
        gateway.wait_ready(timeout_s=60)
        gateway.wait_checked(timeout_s=CHECKED_S, stopping=lambda: False)
        yield options.url
