"""The plugin in every release of vLLM that it supports: its inner tests, and a server whose batch mixes lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.conftest import DRAFT_TOKENS, VllmStarter
from tests.vllm.plugin.client import Refused, Server, summaries, together
from tests.vllm.plugin.releases.conftest import BORROWED_KERNELS, RELEASES
from tests.vllm.plugin.run_inside import INSIDE, run_inside

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LENGTHS = (0, 4, 0, 2, 1, 3)
FOR_CPUS = {"VLLM_TARGET_DEVICE": "cpu"}  # the release with borrowed kernels would look for a GPU
# On CPUs, a draft model ends the engine of this release ("Cannot inspect kernel parameters"), without the plugin too.
NGRAM_ONLY = "0.30.0"
# Equality on the V2 model runner is the default in 0.32 alone, and watermarks are checked where it is supported.
V2_DEFAULT = "check_compatibility.py::test_the_default_rule_depends_on_the_runner_and_the_configuration"
WATERMARKS = "check_compatibility.py::test_equality_with_watermarks_is_refused"
# The plugin hooks nothing in earlier releases' V2 runners.
V2_HOOKS = "check_compatibility.py::test_only_the_hooks_of_the_runner_are_needed"
# Copies of the text beside a drafter's tokens need the V2 model runner of 0.32.
COPIES = (
    "check_compatibility.py::test_copies_are_verified_beside_a_draft_model_or_a_head",
    "check_compatibility.py::test_copies_beside_another_setting_are_refused",
    "check_compatibility.py::test_copies_with_adaptive_verification_are_refused",
)
OF_032 = (V2_DEFAULT, *COPIES)
DESELECTED = {
    # The V2 model runner of 0.29 has no draft models.
    "0.29.0": (
        *(*OF_032, WATERMARKS, V2_HOOKS, "check_compatibility.py::test_the_warning_is_logged_at_start"),
        "check_compatibility.py::test_copies_on_another_runner_are_refused",
    ),
    "0.31.0": (*OF_032, WATERMARKS, V2_HOOKS),
    "0.33.0": OF_032,
}


@pytest.mark.parametrize("version", [each for each in RELEASES if each != NGRAM_ONLY])
def test_inside_vllm(release: Callable[[str], VllmInstall], version: str, tmp_path: Path) -> None:
    env = FOR_CPUS if version == BORROWED_KERNELS else None
    report = run_inside(release(version), tmp_path, env, DESELECTED.get(version, ()))
    passed = {file: set(outcomes) == {"passed"} for file, outcomes in report.results.items()}
    assert passed == {path.name: True for path in INSIDE.glob("check_*.py")}, report.output[-8000:]


@pytest.fixture(params=RELEASES)
def server(
    request: pytest.FixtureRequest, release: Callable[[str], VllmInstall], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    version: str = request.param
    starter = VllmStarter(release(version), tmp_path_factory, FOR_CPUS if version == BORROWED_KERNELS else None)
    try:
        yield starter(method="ngram" if version == NGRAM_ONLY else "draft_model", extra=("--enforce-eager",))
    finally:
        starter.stop()


async def test_one_batch_with_lengths_0_to_4(server: VllmServer, session: aiohttp.ClientSession) -> None:
    speculative = Server(session, server.url)
    [body] = summaries(1)
    answers = []
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 7}):
        batch = await together(
            *(speculative.chat({**body, "max_tokens": 32}, length, **sampling) for length in LENGTHS)
        )
        assert len({answer.token_ids for answer in batch}) == 1
        assert {answer.drafted for answer, length in zip(batch, LENGTHS, strict=True) if length == 0} == {0}
        answers += batch
    assert sum(answer.accepted for answer in answers) > 0
    counters = await speculative.counters()
    assert counters["draft_tokens"] == counters["plugin_draft_tokens"] == sum(each.drafted for each in answers)
    assert counters["accepted_tokens"] == counters["plugin_accepted_tokens"] == sum(each.accepted for each in answers)
    await speculative.set_limit(0)
    assert (await speculative.chat(body, DRAFT_TOKENS)).drafts == 0
    with pytest.raises(Refused):
        await speculative.chat(body, DRAFT_TOKENS + 1)
