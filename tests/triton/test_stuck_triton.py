"""A Triton that no longer takes its model's answers is ended, so that something starts it again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.contract.engine_client import Engine
from tests.support.pipe_transport import PipeTransport
from tests.support.polling import PATIENCE_S
from tests.triton.conftest import ENDLESS, MODEL


@pytest.mark.slow
async def test_a_model_whose_answers_triton_does_not_take_ends_with_its_triton(
    start_triton: Callable[[Path, TritonPorts], TritonServer], free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    """The model computes and its event loop answers meanwhile: only the call that sends pieces does not come back."""
    grpc, http, metrics = free_ports(3)
    server = start_triton(tmp_path, TritonPorts(grpc=grpc, http=http, metrics=metrics))
    transport = PipeTransport(f"127.0.0.1:{grpc}", MODEL)
    try:
        engine = await Engine.of(httpx.AsyncClient(base_url="http://triton", transport=transport, timeout=None))
        async with engine.stream(**ENDLESS) as events:
            await anext(events)
            triton = psutil.Process(server.child.pid)
            triton.send_signal(signal.SIGSTOP)
            assert psutil.wait_procs([triton], timeout=PATIENCE_S)[0]
    except httpx.RemoteProtocolError:
        pass  # the stream's own end, in words of gRPC
    finally:
        await transport.aclose()
        server.stop()
    assert "waits for Triton, so it is killed" in server.child.log_path.read_text(encoding="utf-8")
