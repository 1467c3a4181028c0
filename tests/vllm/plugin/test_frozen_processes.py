"""A vLLM of which one process is frozen ends: its front end alone would answer `/health` for ever, and a node of a
group would never end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import psutil
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.polling import eventually

pytestmark = pytest.mark.slow  # the watchdog waits 30 s; test_watchdog.py is quicker


def process_of(server: VllmServer, name: str) -> psutil.Process:
    """The process of `server` that logs under this name."""
    [pid] = {*re.findall(rf"\({name} pid=(\d+)\)", server.child.log_tail(lines=10_000))}
    return psutil.Process(int(pid))


@pytest.mark.parametrize(("name", "workers"), [("APIServer", 1), ("EngineCore", 1), ("Worker_TP1", 2)])
def test_a_server_of_which_a_process_is_frozen_ends(
    name: str, workers: int, start_vllm: Callable[..., VllmServer]
) -> None:
    server = start_vllm(extra=("--tensor-parallel-size", str(workers)))
    process_of(server, name).suspend()
    began_s = time.monotonic()
    eventually(lambda: server.child.exit_status() is not None, "the server has ended")
    print(f"the server ended {time.monotonic() - began_s:.1f} s after {name} was frozen")
    assert "of vLLM is frozen, so it is killed" in server.child.log_tail(lines=1000)
