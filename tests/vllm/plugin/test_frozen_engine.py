"""A vLLM whose engine process is frozen ends: its API server alone would answer `/health` for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import httpx
import psutil
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.polling import eventually

pytestmark = pytest.mark.slow  # the watchdog waits 30 s; tests/engine/pipe/test_watchdog.py has a quicker one


def engine_of(server: VllmServer) -> psutil.Process:
    """The process whose watchdog writes to the server's log."""
    log = str(server.child.log_path)
    running = psutil.process_iter(["cmdline"])
    watchdogs = [each for each in running if "slipstream-watchdog" in (each.info["cmdline"] or ())]
    [engine] = [each.parent() for each in watchdogs if os.readlink(f"/proc/{each.pid}/fd/2") == log]
    assert engine is not None
    return engine


def test_a_server_whose_engine_process_is_frozen_ends(start_vllm: Callable[..., VllmServer]) -> None:
    server = start_vllm()
    engine_of(server).suspend()
    began_s = time.monotonic()
    assert httpx.get(f"{server.url}/health").status_code == 200
    eventually(lambda: server.child.exit_status() is not None, "the server has ended")
    print(f"the server ended {time.monotonic() - began_s:.1f} s after its engine process was frozen")
