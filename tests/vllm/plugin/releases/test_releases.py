"""The plugin in every release of vLLM that it supports: its inner tests, and a server whose batch mixes lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from slipstream_core.manifest.vllm_command import Speculation
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_server import VllmLaunch, VllmServer

from tests.support.ports import lasting_ports
from tests.vllm.plugin.client import MODEL, Refused, Server, summaries, together
from tests.vllm.plugin.releases.conftest import BORROWED_KERNELS, RELEASES
from tests.vllm.plugin.run_inside import INSIDE, run_inside

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LENGTHS = (0, 4, 0, 2, 1, 3)
TOKENS = 4
FOR_CPUS = {"VLLM_TARGET_DEVICE": "cpu"}  # the borrowing release would look for a GPU
# On CPUs, a draft model ends the engine of this release ("Cannot inspect kernel parameters"), without the plugin too.
NGRAM_ONLY = "0.30.0"


@pytest.mark.parametrize("version", [each for each in RELEASES if each != NGRAM_ONLY])
def test_inside_vllm(release: Callable[[str], VllmInstall], version: str, tmp_path: Path) -> None:
    report = run_inside(release(version), tmp_path, FOR_CPUS if version == BORROWED_KERNELS else None)
    passed = {file: set(outcomes) == {"passed"} for file, outcomes in report.results.items()}
    assert passed == {path.name: True for path in INSIDE.glob("check_*.py")}, report.output[-8000:]


@pytest.fixture(params=RELEASES)
def server(
    request: pytest.FixtureRequest, release: Callable[[str], VllmInstall], tmp_path: Path
) -> Iterator[VllmServer]:
    version: str = request.param
    speculation = Speculation(method="draft_model", tokens=TOKENS, draft=str(DRAFT_DIR))
    if version == NGRAM_ONLY:
        speculation = Speculation(method="ngram", tokens=TOKENS)
    launch = VllmLaunch(
        model=str(TARGET_DIR),
        served_name=MODEL,
        speculation=speculation,
        plugin=True,
        context_tokens=2048,
        extra=("--enforce-eager",),
    )
    [port] = lasting_ports(1)
    env = FOR_CPUS if version == BORROWED_KERNELS else None
    running = VllmServer(install=release(version), launch=launch, run_dir=tmp_path, port=port, env=env)
    try:
        running.wait_ready(timeout_s=600)
        yield running
    finally:
        running.stop()


async def test_one_batch_with_lengths_0_to_4(server: VllmServer, session: aiohttp.ClientSession) -> None:
    speculative = Server(session, server.url)
    [body] = summaries(1)
    answers = []
    for sampling in ({}, {"temperature": 1.0, "seed": 7}):
        batch = await together(*(speculative.chat(body, length, **sampling) for length in LENGTHS))
        assert len({answer.token_ids for answer in batch}) == 1
        assert [answer.drafted > 0 for answer in batch] == [length > 0 for length in LENGTHS]
        answers += batch
    counters = await speculative.counters()
    assert counters["draft_tokens"] == counters["plugin_draft_tokens"] == sum(each.drafted for each in answers)
    assert counters["accepted_tokens"] == counters["plugin_accepted_tokens"] == sum(each.accepted for each in answers)
    await speculative.set_limit(0)
    assert (await speculative.chat(body, TOKENS)).drafts == 0
    with pytest.raises(Refused):
        await speculative.chat(body, TOKENS + 1)
