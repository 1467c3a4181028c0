"""vLLM servers for benchmarks of the plugin: the embedded pair, eager, on this machine's CPUs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
from slipstream_core.manifest.vllm_command import Speculation
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmLaunch, VllmServer

from tests.support.ports import lasting_ports
from tests.vllm.plugin.client import MODEL, Server

DRAFT_TOKENS = 4
START_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 600.0


@contextmanager
def servers(
    *kinds: str, model: Path = TARGET_DIR, threads: int | None = None, extra: Sequence[str] = ()
) -> Iterator[list[VllmServer]]:
    """New servers of `model`, in order: `speculative` with the plugin and four draft tokens, or `plain` without either.
    `extra` are further arguments of vLLM."""
    install = install_vllm(lambda line: print(line, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        started = []
        for kind, port in zip(kinds, lasting_ports(len(kinds)), strict=True):
            speculates = kind == "speculative"
            speculation = Speculation(method="draft_model", tokens=DRAFT_TOKENS, draft=str(DRAFT_DIR))
            launch = VllmLaunch(
                model=str(model),
                served_name=MODEL,
                speculation=speculation if speculates else None,
                plugin=speculates,
                context_tokens=2048,
                threads=threads,
                extra=tuple(extra),
            )
            server = VllmServer(install=install, launch=launch, run_dir=Path(folder), port=port)
            stack.callback(server.stop)
            started.append(server)
        for server in started:
            server.wait_ready(timeout_s=START_TIMEOUT_S)
        yield started


@asynccontextmanager
async def clients(*urls: str) -> AsyncIterator[list[Server]]:
    """Clients of the servers at `urls`."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield [Server(session, url) for url in urls]
