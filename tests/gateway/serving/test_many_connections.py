"""A gateway with thousands of idle connections, and with as many open files as the system lets it have."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S

IDLE = 2_100
_HELD = 4_096


@pytest.fixture
def many_files() -> Iterator[None]:
    """Lets this process open the clients' ends of `IDLE` connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _HELD:
        pytest.skip(f"needs {_HELD} open files, the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _HELD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_of_one_client_keep_no_other_one_out(
    start: Callable[..., Any], openai_server: Callable[..., Any], many_files: None
) -> None:
    gateway = start(manifest_text([openai_server().url]))
    with ExitStack() as stack, httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as known:
        assert known.get("/v1/models").status_code == 200
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S))
        for _ in range(3):
            answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=1"), timeout=PATIENCE_S)
            assert answer.status_code == 200
        assert known.get("/v1/models").status_code == 200


@pytest.mark.parametrize("workers", [1, 2])
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(
    start: Callable[..., Any], openai_server: Callable[..., Any], workers: int
) -> None:
    gateway = start(manifest_text([openai_server().url]), workers=workers, open_files=(512, 6_000))
    assert _limits(gateway.child.pid) == ("6000", "6000")
    gateway.child.terminate()
    _, log = gateway.child.communicate(timeout=PATIENCE_S)
    assert "open files" not in log


def test_a_limit_of_open_files_that_is_too_low_is_said(
    start: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    gateway = start(manifest_text([openai_server().url]), "--max-queued", "100", open_files=(512, 600))
    assert _limits(gateway.child.pid) == ("600", "600")
    gateway.child.terminate()
    _, log = gateway.child.communicate(timeout=PATIENCE_S)
    [line] = [line for line in log.splitlines() if "open files" in line]
    assert "open files are limited to 600: a worker keeps 158 connections instead of 1202" in line
    assert line.endswith("and runs 78 requests at once. Raise the hard limit (ulimit -Hn).")


def _limits(pid: int) -> tuple[str, str]:
    [line] = [line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "open files" in line]
    soft, hard = line.split()[3:5]
    return soft, hard


def test_bodies_of_one_key_that_do_not_end_leave_connections_to_others(
    start: Callable[..., Any], openai_server: Callable[..., Any], tmp_path: Path
) -> None:
    """600 open files: 158 connections, of which half may send the bodies of one key."""
    keys = Keys(tmp_path / "keys.json")
    hostile, other = keys.create("--name", "hostile"), keys.create("--name", "other")
    options = ("--keys", str(keys.path), "--max-queued", "100")
    gateway = start(manifest_text([openai_server().url]), *options, open_files=(512, 600))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {hostile}\r\n"
    head += 'content-type: application/json\r\ncontent-length: 500\r\n\r\n{"model":'
    with ExitStack() as stack:
        for _ in range(400):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=PATIENCE_S))
            client.sendall(head.encode())
        for _ in range(3):
            live = httpx.get(f"{gateway.url}/health/live", timeout=PATIENCE_S)
            answer = httpx.post(
                f"{gateway.url}/v1/chat/completions",
                json=chat("tokens=1"),
                headers={"authorization": f"Bearer {other}"},
                timeout=PATIENCE_S,
            )
            assert (live.status_code, answer.status_code) == (200, 200)
