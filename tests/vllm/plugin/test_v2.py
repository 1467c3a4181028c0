"""vLLM's V2 model runner with asynchronous scheduling, as GPUs run it: answers do not depend on the draft length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmServer

from tests.support.vllm_v2 import v2_environment
from tests.vllm.plugin.client import Answer, Server, summaries, together
from tests.vllm.plugin.run_inside import INSIDE_V2, PYTEST, Report, run_inside

pytestmark = pytest.mark.timeout(1800)
LENGTHS = (0, 2, 4)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.9, "seed": 7},
    {"temperature": 2.0, "seed": 8, "repetition_penalty": 1.2},
)


@pytest.fixture(scope="module")
def v2_server(
    start_vllm_v2: Callable[..., VllmServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    file = tmp_path_factory.mktemp("classes") / "classes.yaml"
    file.write_text(
        "classes: {summary: {length: 2}, short: {length: 0}}\nrules: [{class: short, max_tokens: [null, 8]}]\n"
    )
    server = start_vllm_v2(extra=("--async-scheduling",), env={"SLIPSTREAM_VLLM_CLASSES": str(file)})
    yield server
    server.stop()


@pytest.fixture
def server(session: aiohttp.ClientSession, v2_server: VllmServer) -> Server:
    return Server(session, v2_server.url)


async def test_the_server_is_like_one_on_a_gpu(server: Server) -> None:
    description = await server.call("GET", "/slipstream")
    assert (description["scheduler"], description["acceptance"]) == ("async", "equality")


async def test_answers_of_one_batch_are_the_same_at_every_length(server: Server) -> None:
    before = await server.counters()
    kinds = [{**body, **kind, "max_tokens": 16} for body, kind in zip(summaries(len(KINDS)), KINDS, strict=True)]
    answers: list[Answer] = await together(*(server.chat(kind, length) for kind in kinds for length in LENGTHS))
    by_length = [answers[index :: len(LENGTHS)] for index in range(len(LENGTHS))]
    plain, *drafted = [[answer.token_ids for answer in some] for some in by_length]
    assert drafted == [plain, plain]
    assert [sum(answer.drafted for answer in some) > 0 for some in by_length] == [False, True, True]
    assert sum(answer.accepted for answer in answers) > len(answers)
    after = await server.counters()
    for name, counted in (("draft_tokens", "drafted"), ("accepted_tokens", "accepted"), ("drafts", "drafts")):
        total = sum(getattr(answer, counted) for answer in answers)
        assert after[name] - before[name] == after[f"plugin_{name}"] - before[f"plugin_{name}"] == total


async def test_classes_have_their_lengths_and_counts(server: Server) -> None:
    """tests/vllm/plugin/test_classes.py has the rest, on the V1 runner, which is quicker here."""
    [body] = summaries(1)
    labelled, by_rule = await together(
        server.chat(body, label="summary", max_tokens=12), server.chat(body, max_tokens=8)
    )
    assert 0 < labelled.drafted <= 2 * labelled.drafts
    assert by_rule.drafted == 0
    found = (await server.call("GET", "/slipstream/classes"))["classes"]
    for label, answer in (("summary", labelled), ("short", by_rule)):
        counts = (1, len(answer.token_ids), answer.drafted, answer.accepted)
        assert tuple(found[label][name] for name in ("requests", "tokens", "drafted", "accepted")) == counts


@pytest.mark.slow  # a server of its own
async def test_a_server_counts_drafts_by_their_source(
    session: aiohttp.ClientSession, start_vllm_v2: Callable[..., VllmServer]
) -> None:
    hybrid = start_vllm_v2(extra=("--async-scheduling", "--additional-config", '{"slipstream_hybrid": true}'))
    server = Server(session, hybrid.url)
    assert (await server.call("GET", "/slipstream"))["hybrid"] is True
    copied = {"messages": [{"role": "user", "content": "Repeat: 11514 / Mara Osterova / 4411 / 88231 / 10473"}]}
    bodies = [{**body, **kind, "max_tokens": 24} for body, kind in zip([copied, *summaries(2)], KINDS, strict=True)]
    plain, drafted = [await together(*(server.chat(body, length) for body in bodies)) for length in (0, 4)]
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    accepted = await server.by_label("slipstream_vllm_accepted_tokens", "source")
    assert set(accepted) == {"copy", "drafter"}
    assert sum(accepted.values()) == sum(answer.accepted for answer in drafted) > accepted["copy"] > 0
    hybrid.stop()


def run_v2(folder: Path, file: str, expression: str = "", **environment: str) -> Report:
    install = install_vllm(print, extra=(PYTEST,))
    return run_inside(install, folder, v2_environment() | environment, files=INSIDE_V2 / file, expression=expression)


def test_random_requests_asynchronously(tmp_path: Path) -> None:
    file = "check_fuzz_v2.py"
    report = run_v2(tmp_path, file, "draft_model-async")
    assert report.results.get(file) == {"passed": 1}, report.output[-8000:]


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(path.name for path in INSIDE_V2.glob("check_*.py")))
def test_inside_vllm(file: str, tmp_path: Path) -> None:
    report = run_v2(tmp_path, file)
    assert set(report.results.get(file, {})) == {"passed"}, report.output[-8000:]


@pytest.mark.slow(in_quarters=False)
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("file", ["check_fuzz_v2.py", "check_resumption_v2.py", "check_distribution_v2.py"])
def test_a_thousand_random_requests(file: str, tmp_path: Path) -> None:
    """1,000 with each drafting method, 100 answers that another engine continues, and six comparisons of 1,000 answers
    with 1,000 plain ones."""
    report = run_v2(tmp_path, file, SLIPSTREAM_FUZZ_REQUESTS="1000")
    assert set(report.results.get(file, {})) == {"passed"}, report.output[-8000:]
