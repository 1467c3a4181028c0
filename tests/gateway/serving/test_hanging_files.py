"""Files that are no regular files, and file systems that do not answer: they are said, and hold nothing up."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.file_reading import FileThread, read_regular
from slipstream_core.manifest import EMBEDDED_MANIFEST, ManifestFile
from slipstream_core.manifest.kill_file import KillFile
from slipstream_gateway.sources.cluster.snapshot import read_snapshot
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.command import run_slipstream
from tests.support.gateway_process import Process
from tests.support.hanging_files import leased, replace_by_fifo
from tests.support.polling import PATIENCE_S, eventually

LATE = "the file system did not answer within 5 s"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "it is a FIFO, a regular file is needed"),
        (make_socket, "it is a socket, a regular file is needed"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a character device, a regular file is needed"),
        (lambda path: path.mkdir(), "Is a directory"),
    ],
    ids=["fifo", "socket", "device", "folder"],
)
def test_a_file_of_another_kind_is_not_opened(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match="file") as caught:
        read_regular(path, max_bytes=10)
    assert (caught.value.strerror, caught.value.filename) == (said, str(path))


def test_a_link_to_a_regular_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("data")
    assert read_regular(tmp_path / "link", max_bytes=4) == b"0123"


@pytest.mark.parametrize(
    ("option", "code"), [("-f", 2), ("--keys", 1), ("--upstream-ca", 1), ("--classifier", 2)], ids=str
)
def test_a_fifo_stops_a_start_with_one_line_that_names_it(
    tmp_path: Path, option: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    manifest = () if option == "-f" else ("-f", str(EMBEDDED_MANIFEST))
    assert main(["gateway", *manifest, option, str(fifo), "--port", "0"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert str(fifo) in line
    assert "it is a FIFO, a regular file is needed" in line


def test_a_manifest_that_cannot_be_opened_stops_a_start_within_the_deadline(tmp_path: Path) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_bytes(EMBEDDED_MANIFEST.read_bytes())
    with leased(manifest):
        done = run_slipstream("gateway", "-f", str(manifest), "--port", "0")
    assert (done.returncode, done.stderr) == (2, f"slipstream: error: {manifest}: cannot be read: {LATE}\n")


async def test_a_manifest_that_hangs_is_said_once_and_followed_again_when_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_bytes(EMBEDDED_MANIFEST.read_bytes())
    changes: list[Any] = []
    errors: list[ManifestError] = []
    file = ManifestFile(path, on_change=changes.append, on_error=errors.append)
    path.write_bytes(EMBEDDED_MANIFEST.read_bytes() + b"# changed\n")
    with leased(path):
        looks = asyncio.gather(*(file.refresh() for _ in range(3)))
        ticks = await _ticks_until(looks)
    assert ticks > 100  # of 10 ms, in the five seconds that nobody had an answer
    assert [str(error) for error in errors] == [f"{path}: cannot be read: {LATE}"]
    await file.refresh()
    assert (len(changes), len(errors)) == (1, 1)


async def test_kill_switches_that_hang_hold_nothing_up(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    path.write_text("{}")
    kills = KillFile(path)
    kills.refresh()
    path.write_text('{"pairs": {"pair": {"at": "2026-01-01T00:00:00Z", "by": "Ada"}}}')
    with leased(path):
        looking = asyncio.ensure_future(kills.arefresh())
        assert await _ticks_until(asyncio.gather(looking, return_exceptions=True)) > 100
        assert str(looking.exception()) == f"{path}: cannot be read: {LATE}"
    while not kills.kills.pairs:
        await kills.arefresh()


async def test_files_that_could_not_be_read_once_are_read_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they look as they did when it failed."""
    path, keys = tmp_path / "kills.json", tmp_path / "pair.yaml"
    kills = KillFile(path)
    kills.refresh()
    keys.write_bytes(EMBEDDED_MANIFEST.read_bytes())
    changes: list[Any] = []
    errors: list[ManifestError] = []
    file = ManifestFile(keys, on_change=changes.append, on_error=errors.append)
    path.write_text('{"pairs": {"pair": {"at": "2026-01-01T00:00:00Z", "by": "Ada"}}}')
    keys.write_bytes(EMBEDDED_MANIFEST.read_bytes() + b"# changed\n")
    os.utime(keys, (1, 1))  # long ago: only a look at its stamp tells whether to read it
    with monkeypatch.context() as patch:
        for module in ("kill_file", "files"):
            patch.setattr(f"slipstream_core.manifest.{module}.read_regular", _fails)
        with pytest.raises(ManifestError, match="Input/output error"):
            await kills.arefresh()
        await file.refresh()
        await file.refresh()
    assert len(errors) == 1
    assert await kills.arefresh()
    assert kills.kills.pairs
    await file.refresh()
    assert len(changes) == 1


def _fails(path: Path, *, max_bytes: int) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


async def _ticks_until(work: asyncio.Future[Any]) -> int:
    """How often the event loop comes round, every 10 ms at most, before `work` is done."""
    ticks = 0
    while not work.done():
        await asyncio.sleep(0.01)
        ticks += 1
    await work
    return ticks


async def test_a_call_that_hangs_gets_no_second_thread_and_later_ones_go_on_after_it() -> None:
    reading, writing = os.pipe()
    files = FileThread(timeout_s=0.2)
    for _ in range(3):
        with pytest.raises(TimeoutError, match="did not answer within"):
            await files.arun(partial(os.read, reading, 1))
    with pytest.raises(TimeoutError):
        files.run(partial(os.read, reading, 1))
    os.write(writing, b"ab")
    assert await files.arun(partial(os.read, reading, 1)) == b"b"  # the first call alone was made, and took "a"
    os.close(writing)
    os.close(reading)


async def test_calls_that_wait_for_one_that_hangs_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    files = FileThread(timeout_s=0.2)

    def fail() -> None:
        os.read(reading, 1)
        raise OSError(errno.EIO, "failed late")

    for _ in range(5):
        with pytest.raises(TimeoutError, match="did not answer within"):
            await files.arun(fail)
    os.write(writing, b"a")
    assert await files.arun(lambda: 1) == 1
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text
    os.close(writing)
    os.close(reading)


def test_a_call_that_fails_leaves_no_thread_behind() -> None:
    gc.disable()
    try:
        before = set(threading.enumerate())
        for _ in range(10):
            with pytest.raises(FileNotFoundError):
                FileThread().run(Path("/no/such").stat)
        eventually(lambda: set(threading.enumerate()) <= before)
    finally:
        gc.enable()


def test_an_error_of_a_call_is_the_callers() -> None:
    with pytest.raises(FileNotFoundError):
        FileThread().run(Path("/no/such").stat)


def test_a_snapshot_that_is_a_fifo_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "snapshot.json")
    with caplog.at_level(logging.WARNING):
        assert read_snapshot(tmp_path / "snapshot.json") is None
    assert "it is a FIFO, a regular file is needed" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_files_that_become_fifos_hold_up_neither_requests_nor_the_end(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path,
    workers: int) -> None:  # fmt: skip
    process = start(manifest_text([openai_server().url]), "--drain", "1", workers=workers)
    replace_by_fifo(tmp_path / "pair.yaml")
    replace_by_fifo(tmp_path / "pair.yaml.kills.json")
    for _ in range(20):
        answer = httpx.post(f"{process.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S)
        assert answer.status_code == 200
        time.sleep(0.02)  # each time the files are looked at
    process.child.send_signal(signal.SIGTERM)
    _, log = process.child.communicate(timeout=PATIENCE_S)
    assert process.child.returncode == 0
    for name in ("pair.yaml", "pair.yaml.kills.json"):
        assert log.count(f"{tmp_path / name}: cannot be read: it is a FIFO, a regular file is needed") == workers


def test_a_kill_whose_file_hangs_acts_nevertheless_and_holds_up_no_end(
    start: Callable[..., Process], openai_server: Callable[..., Any], tmp_path: Path
) -> None:
    """It waits for the lock of its file, as on a network file system whose server is away."""
    process = start(manifest_text([openai_server().url]), "--drain", "1")
    with (tmp_path / "pair.yaml.kills.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        headers = {"x-slipstream-console": "1"}
        url = f"{process.url}/admin/kills/pair"
        answer = httpx.post(url, json={"by": "Ada"}, headers=headers, timeout=PATIENCE_S)
        assert answer.is_success
        assert answer.json()["landed_s"] < 5.0  # the file system is given up after that time
        assert "not stored: ends with a restart" in answer.json()["note"]
        assert f"the kill switch cannot be stored: {LATE}" in answer.json()["note"]
        process.child.send_signal(signal.SIGTERM)
        process.child.wait(PATIENCE_S)


def test_a_file_nested_too_deeply_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "nested.json"
    path.write_text('{"events":' + "[" * 100_000)
    with pytest.raises(ManifestError, match="is not a kill-switch file"):
        KillFile(path).refresh()
    path.write_text('{"objects":' + "[" * 100_000)
    assert read_snapshot(path) is None
    assert f"the snapshot {path} cannot be used" in caplog.text
