"""What can go wrong around vLLM inside Triton: its engine dies, or the stub cannot read its numpy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from slipstream_core.errors import CommandError, UpstreamError
from slipstream_tools.up.triton_server import TritonServer
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.contract.engine_client import COMPLETION, Engine, Refused
from tests.support.command import arguments_of
from tests.support.engines import engine_in_triton
from tests.vllm.triton.conftest import START_TIMEOUT_S, model_of, ready

ANSWERED_S = 15.0
ENDLESS: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "ignore_eos": True, "max_tokens": 1500}
SHORT: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "max_tokens": 1}


def test_numpy_that_the_stub_cannot_read_fails_the_load(
    tmp_path: Path,
    write_vllm_repository: Callable[[Path], Any],
    run_triton: Callable[[Path, Path], TritonServer],
) -> None:
    """Without the numpy that lies first in the stub's environment, vLLM's own is found: inputs would come in wrong."""
    repository = write_vllm_repository(tmp_path)
    links = list(repository.stub.glob("lib/python*/site-packages/numpy*"))
    assert links
    for link in links:
        link.unlink()
    server = run_triton(repository.models, tmp_path)
    try:
        with pytest.raises(CommandError, match=r"does not work with numpy 2[.\d]+: it turns .* put numpy 1\.26 first"):
            server.wait_ready(timeout_s=START_TIMEOUT_S)
    finally:
        server.stop()


def test_speculation_without_the_plugins_scheduler_fails_the_load(
    tmp_path: Path,
    write_vllm_repository: Callable[..., Any],
    run_triton: Callable[[Path, Path], TritonServer],
) -> None:
    repository = write_vllm_repository(tmp_path, "--scheduler-cls", "vllm.v1.core.sched.scheduler.Scheduler")
    server = run_triton(repository.models, tmp_path)
    try:
        with pytest.raises(CommandError, match=r"an engine that speculates needs --scheduler-cls slipstream_vllm\."):
            server.wait_ready(timeout_s=START_TIMEOUT_S)
        assert "Loading weights" not in (tmp_path / "triton.log").read_text(errors="replace")
    finally:
        server.stop()


@pytest.fixture
async def own_triton(
    tmp_path: Path,
    vllm_install: VllmInstall,
    write_vllm_repository: Callable[..., Any],
    run_triton: Callable[[Path, Path], TritonServer],
) -> Any:
    """Its engine is started as a user's is."""
    with ready(run_triton(write_vllm_repository(tmp_path, install=vllm_install).models, tmp_path)) as server:
        yield server


@pytest.mark.slow  # a server of its own
async def test_requests_fail_and_the_model_is_not_ready_when_the_engine_dies(own_triton: TritonServer) -> None:
    upstream = engine_in_triton(f"{own_triton.ports.host}:{own_triton.ports.grpc}")
    async with model_of(own_triton) as model:
        await upstream.probe()
        running = [asyncio.create_task(_finish(model, number % 3)) for number in range(6)]
        whole = asyncio.create_task(model.ask(length=0, **ENDLESS))
        assert (await model.ask(**SHORT)).ids
        _kill_engine(own_triton)
        async with asyncio.timeout(ANSWERED_S):
            ends = await asyncio.gather(*running)
            with pytest.raises(Refused) as refused:
                await whole
        assert refused.value.status == 500
        assert all("error" in end for end in ends)
        async with asyncio.timeout(ANSWERED_S):
            with pytest.raises(Refused) as later:
                await model.ask(**SHORT)
        assert later.value.status == 500
        assert (await model.http.get("/health")).status_code == 503
        with pytest.raises(UpstreamError):
            await upstream.probe()
    await upstream.aclose()
    async with httpx.AsyncClient(timeout=ANSWERED_S) as http:  # Triton itself lives, and its other models with it
        url = f"http://{own_triton.ports.host}:{own_triton.ports.http}/v2/health/live"
        assert (await http.get(url)).status_code == 200


async def _finish(model: Engine, length: int) -> dict[str, Any]:
    """The last event of an endless stream."""
    async with model.stream(length=length, **ENDLESS) as events:
        return [event async for event in events][-1]


def _kill_engine(server: TritonServer) -> None:
    engines = [
        child
        for child in psutil.Process(server.child.pid).children(recursive=True)
        if "EngineCore" in " ".join(arguments_of(child))
    ]
    assert engines
    for engine in engines:
        engine.kill()
