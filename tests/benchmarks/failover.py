"""How long a client waits when a stream's server is lost half-way: `python -m tests.benchmarks.failover
[--streams 60]`.

The real Triton with the embedded pair, behind two addresses whose connections are reset on cue; the gateway before
them. Each stream twice, in turns: undisturbed, for its time to the first token, and cut somewhere in its middle, for
the silence between the reset and the next token, which another server must take in prompt and answer for. Every cut
stream's text is held against the undisturbed one. Goal: the gap's p99 is at most 1.5 times the first token's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import uvloop
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions

from tests.benchmarks.system import MODEL, free_ports, running_system
from tests.support.breaking_network import BreakingNetwork, Cut

GOAL = 1.5
_MAX_TOKENS = 160
_TURN = "Customer: Order {number} has not arrived, and I was promised it for Tuesday.\nAgent: I will look into it.\n"


class Run(NamedTuple):
    """One stream: when each event with text came, by `time.perf_counter`, the text, and the draft length."""

    started_s: float
    events_s: list[float]
    text: str
    draft_length: str

    @property
    def first_token_s(self) -> float:
        return self.events_s[0] - self.started_s

    def gap_s(self, cut_s: float) -> float:
        """The silence that the reset caused: up to one event was on its way already."""
        after = [cut_s, *[at for at in self.events_s if at > cut_s][:2]]
        return max((later - earlier for earlier, later in itertools.pairwise(after)), default=0.0)


async def stream(session: aiohttp.ClientSession, url: str, index: int) -> Run:
    """One stream; arms and temperatures take turns."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Summarize this call.\n\n{_TURN.format(number=4000 + index) * 4}"}],
        "max_tokens": _MAX_TOKENS,
        "temperature": (0, 1.2)[index // 2 % 2],
        "seed": index,
        "stream": True,
    }
    headers = {"x-slipstream-mode": ("plain", "speculative")[index % 2]}
    started_s, events_s, text = time.perf_counter(), [], ""
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        draft_length = response.headers["x-slipstream-draft-length"]
        async for line in response.content:
            now_s = time.perf_counter()
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                if part := choice["delta"].get("content"):
                    text += part
                    events_s.append(now_s)
    return Run(started_s, events_s, text, draft_length)


async def measure(url: str, network: BreakingNetwork, count: int) -> bool:
    """Prints the table; False where the goal is missed or a text differs."""
    chance = random.Random(7)
    first_s, gaps_s, wrong = [], [], 0
    async with aiohttp.ClientSession() as session:
        for index in range(count + 4):
            network.plan()
            whole = await stream(session, url, index)
            network.plan(Cut(chance.randrange(3000, 12_000)))
            cut = await stream(session, url, index)
            # Under load the gateway may draft less, with which a sampled answer is another one.
            wrong += cut.text != whole.text and cut.draft_length == whole.draft_length
            if index >= 4:  # the first few open connections
                first_s.append(whole.first_token_s)
                if network.made and cut.events_s[-1] > network.cut_s:
                    gaps_s.append(cut.gap_s(network.cut_s))
    print(f"{'ms':>28} {'p50':>8} {'p99':>8}")
    print(f"{'first token':>28} {1e3 * quantile(first_s, 0.5):8.1f} {1e3 * quantile(first_s, 0.99):8.1f}")
    print(
        f"{'gap where the server is lost':>28} {1e3 * quantile(gaps_s, 0.5):8.1f} {1e3 * quantile(gaps_s, 0.99):8.1f}"
    )
    ratio = quantile(gaps_s, 0.99) / quantile(first_s, 0.99)
    print(f"gap p99 / first token p99: {ratio:.2f} (goal: {GOAL} at most); {len(gaps_s)} streams cut, {wrong} differ")
    return ratio <= GOAL and not wrong


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description="The gap in a stream whose server is lost.")
    parser.add_argument("--streams", type=int, default=60, help="how many (%(default)s)")
    options = parser.parse_args()
    with running_system() as system, tempfile.TemporaryDirectory() as name:
        host, _, grpc = system.triton_address.rpartition(":")
        network = BreakingNetwork(host, int(grpc), 2)
        endpoints = json.dumps([f"grpc://127.0.0.1:{port}" for port in network.ports])
        manifest = Path(name) / "pair.yaml"
        text = EMBEDDED_MANIFEST.read_text()
        manifest.write_text(text.replace("kind: slipstream\n", f"kind: slipstream\n    endpoints: {endpoints}\n", 1))
        [port] = free_ports(1)
        up = UpOptions(manifest=manifest, port=port, grpc_port=int(grpc))
        gateway = GatewayProcess(options=up, run_dir=Path(name))
        try:
            gateway.wait_ready(timeout_s=60)
            return 0 if uvloop.run(measure(up.url, network, options.streams)) else 1
        finally:
            gateway.stop()
            network.stop()


if __name__ == "__main__":
    sys.exit(main())
