"""The file of keys while gateways run: what changes is in force soon, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
import http.client
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from slipstream_gateway.access import KeyFile

from tests.gateway.pair_manifest import manifest_text
from tests.support.command import run_slipstream
from tests.support.gateway_process import Process, workers_of
from tests.support.hanging_files import replace_by_fifo
from tests.support.polling import PATIENCE_S, eventually, soon

BAD = "{ this is no file of keys"


def status(url: str, key: str) -> int:
    """Of a fresh connection each time, so that any worker may answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


def until(url: str, key: str, wanted: int, *, in_a_row: int = 1) -> None:
    """Waits until `wanted` was the answer that many times in a row."""
    eventually(lambda: all(status(url, key) == wanted for _ in range(in_a_row)), f"status {wanted}")


def test_new_and_revoked_keys_are_in_force_without_a_restart(served: Callable[..., Any], keys: Any) -> None:
    first = keys.create("--name", "first")
    url = served().url
    assert status(url, first) == 200
    second = keys.create()
    until(url, second, 200)
    keys.run("revoke", "first")
    until(url, first, 401)
    assert status(url, second) == 200


def test_bad_or_missing_file_leaves_the_last_good_one_in_force(
    served: Callable[..., Any], keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    key = keys.create()
    url = served().url
    for spoil in (lambda: keys.path.write_text(BAD), keys.path.unlink):
        spoil()
        wait_for_words(caplog, "the last good one stays in force")
        assert status(url, key) == 200
        caplog.clear()
    assert key not in caplog.text


def wait_for_words(caplog: pytest.LogCaptureFixture, words: str) -> None:
    eventually(lambda: words in caplog.text, words, seen=lambda: caplog.text)


def test_secret_that_is_mounted_anew_is_followed(served: Callable[..., Any], keys: Any, tmp_path: Path) -> None:
    """As the kubelet does it: a link to a folder, swapped for one to another folder."""
    old_key = keys.create()
    pepper = Path(f"{keys.path}.pepper")
    before = {path.name: path.read_bytes() for path in (keys.path, pepper)}
    new_key = keys.create()
    keys.run("revoke", keys.records()[0]["id"])
    after = {path.name: path.read_bytes() for path in (keys.path, pepper)}
    mount = tmp_path / "mount"
    mount.mkdir()
    for version, files in (("1", before), ("2", after)):
        (mount / version).mkdir()
        for name, data in files.items():
            (mount / version / name).write_bytes(data)
    (mount / "..data").symlink_to("1")
    for name in before:
        (mount / name).symlink_to(f"..data/{name}")
    keys.path = mount / keys.path.name
    url = served().url
    assert (status(url, old_key), status(url, new_key)) == (200, 401)
    (mount / "..new").symlink_to("2")
    (mount / "..new").rename(mount / "..data")
    until(url, new_key, 200)
    assert status(url, old_key) == 401


@pytest.fixture
def two_workers(
    tmp_path: Path, free_ports: Callable[[int], list[int]], keys: Any, exit_stack: ExitStack
) -> Callable[[], Process]:
    """Starts `slipstream gateway` with two workers."""

    def start() -> Process:
        manifest = tmp_path / "pair.yaml"
        manifest.write_text(manifest_text(["http://127.0.0.1:9"]))
        process = Process(manifest, free_ports(1)[0], "--keys", str(keys.path), workers=2)
        exit_stack.callback(process.stop)
        process.wait_live()
        return process

    return start


def test_revoked_key_is_refused_by_every_worker_also_by_one_that_starts_while_the_file_is_bad(
    two_workers: Callable[[], Process], keys: Any
) -> None:
    revoked, good = keys.create("--name", "revoked"), keys.create()
    process = two_workers()
    url = process.url
    until(url, good, 200, in_a_row=10)
    keys.run("revoke", "revoked")
    until(url, revoked, 401, in_a_row=10)
    keys.path.write_text(BAD)
    before = workers_of(process)
    before[0].kill()
    eventually(lambda: set(workers_of(process)) - set(before), "another worker")
    assert process.child.poll() is None
    until_steady(url, good, 200)
    until_steady(url, revoked, 401)


def until_steady(url: str, key: str, wanted: int) -> None:
    """Waits until `wanted` is the answer ten times in a row; a worker that has just died breaks connections."""
    broken = (OSError, http.client.HTTPException)
    eventually(lambda: all(status(url, key) == wanted for _ in range(10)), f"status {wanted}", ignoring=broken)


@pytest.mark.integration
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_gateway_for_other_machines_without_keys_does_not_start(host: str, tmp_path: Path, keys: Any) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(manifest_text(["http://127.0.0.1:9"]))
    command = ("gateway", "-f", str(manifest), "--port", "0")
    done = run_slipstream(*command, "--host", host)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--keys FILE" in done.stderr
    done = run_slipstream(*command, "--keys", str(keys.path))
    assert done.returncode == 1
    assert f"{keys.path}: cannot be read" in done.stderr


class _Seen(type(Path())):  # type: ignore[misc]  # the platform's own class
    """A path that remembers which threads have asked for its state."""

    threads: ClassVar[set[int]] = set()

    def stat(self, **options: Any) -> os.stat_result:
        self.threads.add(threading.get_ident())
        return super().stat(**options)


async def test_a_file_on_a_slow_disk_keeps_no_request_waiting(keys: Any) -> None:
    """The event loop's thread never asks the file system for it."""
    await asyncio.to_thread(keys.create)
    file = KeyFile(_Seen(keys.path), None)
    await asyncio.to_thread(file.load)
    changes: list[int] = []
    watching = asyncio.create_task(file.watch(lambda ring: changes.append(len(ring)), interval_s=0.01))
    await asyncio.to_thread(keys.create)
    await soon(lambda: changes, "a change of the key file")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert changes[-1] == 2
    assert _Seen.threads
    assert threading.get_ident() not in _Seen.threads


async def test_a_fifo_in_the_place_of_the_file_is_said_and_what_was_read_before_stays(
    keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(keys.create)
    file = KeyFile(keys.path, None)
    await asyncio.to_thread(file.load)
    watching = asyncio.create_task(file.watch(lambda ring: None, interval_s=0.01))
    replace_by_fifo(keys.path)
    await soon(lambda: "FIFO" in caplog.text, "a log line about the FIFO")
    watching.cancel()
    said = f"{keys.path}: cannot be read: it is a FIFO, a regular file is needed"
    assert f"the last good one stays in force: {said}" in caplog.text
