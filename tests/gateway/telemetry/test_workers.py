"""Workers that ask each other, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from slipstream_gateway.telemetry.workers import PeerQuery, WorkerPeers

pytestmark = pytest.mark.integration


def peers(folder: Path | None, name: str, monkeypatch: pytest.MonkeyPatch) -> WorkerPeers:
    """A worker of its own number: the socket goes by it."""
    monkeypatch.setattr("os.getpid", lambda: name)
    worker = WorkerPeers(folder)
    worker.answer(PeerQuery.METRICS, lambda: b"# TYPE a counter\na_total 1.0\n")
    worker.answer(PeerQuery.SNAPSHOT, lambda: b'{"worker": "%s"}' % name.encode())
    return worker


async def test_any_worker_tells_of_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = peers(tmp_path, "1", monkeypatch), peers(tmp_path, "2", monkeypatch)
    async with one, other:
        assert await one.ask(PeerQuery.SNAPSHOT) == [b'{"worker": "1"}', b'{"worker": "2"}']
        assert await other.ask(PeerQuery.SNAPSHOT) == [b'{"worker": "2"}', b'{"worker": "1"}']
        assert b"a_total 2.0" in await one.metrics()


async def test_one_that_has_nothing_to_say_or_has_died_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "9.sock"))
    dead.close()  # as a killed worker leaves it: the file is there, and nobody listens
    monkeypatch.setattr("os.getpid", lambda: "2")
    async with WorkerPeers(tmp_path), peers(tmp_path, "1", monkeypatch) as one:
        assert await one.ask(PeerQuery.SNAPSHOT) == [b'{"worker": "1"}']
        assert await one.ask(PeerQuery.OPENMETRICS) == []
    assert not (tmp_path / "9.sock").exists()


async def test_a_stranger_who_asks_for_nothing_known_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with peers(tmp_path, "1", monkeypatch):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "1.sock")
        writer.write(b"passwords\n")
        assert await reader.read() == b""
        writer.close()


async def test_a_single_worker_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with peers(None, "1", monkeypatch) as alone:
        assert await alone.ask(PeerQuery.SNAPSHOT) == [b'{"worker": "1"}']
        assert b"a_total 1.0" in await alone.metrics()
