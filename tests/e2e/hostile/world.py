"""A gateway in a process of its own, before an upstream that answers whatever it is asked."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.hostile.answering_server import Seen, answering_server
from tests.gateway.pair_manifest import manifest_text
from tests.support.command import SLIPSTREAM
from tests.support.polling import soon


class Target(NamedTuple):
    """The gateway under attack. `admin_port` is the same as `port` where it has none of its own."""

    port: int
    admin_port: int
    pid: int
    log_path: Path
    seen: Seen

    @property
    def log(self) -> str:
        return _log(self.log_path)


@asynccontextmanager
async def hostile_world(
    folder: Path, *options: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Target]:
    """The running gateway; the upstream lives in the caller's own event loop."""
    async with answering_server() as (url, seen):
        manifest, log_path = folder / "pair.yaml", folder / "gateway.log"
        manifest.write_text(manifest_text([url]))
        child = _start(manifest, log_path, options, environment or {})
        try:
            ports = await _ports(child, log_path, 2 if "--admin-port" in options else 1)
            yield Target(ports[0], ports[-1], child.pid, log_path, seen)
        finally:
            child.kill()
            child.wait()


def _start(
    manifest: Path, log_path: Path, options: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    command = [*SLIPSTREAM, "gateway", "-f", str(manifest), "--port", "0", *options]
    with log_path.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})


def _log(log_path: Path) -> str:
    return log_path.read_text(errors="replace")


async def _ports(child: subprocess.Popen[bytes], log_path: Path, count: int) -> Sequence[int]:
    """What the gateway says that it listens on, when it takes connections and requests there."""

    async def ports() -> Sequence[int]:
        log = _log(log_path)
        assert child.poll() is None, log
        found = [int(port) for port in re.findall(r" on https?://[^\s]*:(\d+)", log)]
        return found[:count] if len(found) >= count and await _is_live(found[0]) else ()

    return await soon(ports, "the gateway's ports", seen=lambda: _log(log_path))


async def _is_live(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b" 200 " in await reader.read(64)
    finally:
        writer.close()
