"""Checks of SGLang's, TensorRT-LLM's and llama.cpp's servers. The servers are scripts that answer as the engines' code
does (`scripted_dialects`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from slipstream_core.settings import ConformanceSettings

from tests.gateway import scripted_dialects as scripted
from tests.support.polling import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

ON = ConformanceSettings(enabled=True, probe_s=0.2)
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(gateway: Callable[..., Any]) -> Iterator[Check]:
    """The state of the speculative server after its first check. `written` is the manifest's dialect, `dialect` the
    server's."""
    servers: list[scripted.ScriptedDialect] = []

    def run(dialect: str, *, written: str | None = None, speculates: bool = True) -> dict[str, Any]:
        kind = scripted.DIALECTS[dialect]
        plain, speculative = kind(speculates=False), kind(speculates=speculates)
        servers.extend((plain, speculative))
        text = scripted.pair_text(written or dialect, plain=plain.url, speculative=speculative.url)
        running = gateway(text, conformance=ON)

        def state() -> dict[str, Any]:
            [pair] = httpx.get(f"{running.url}/v1/evidence", timeout=PATIENCE_S).json()["data"]
            [server] = pair["conformance"]
            return dict(server)

        eventually(lambda: state()["checked_s"] is not None)
        found = state()
        return found | {"results": {row["subject"]: row["result"] for row in found["findings"]}}

    yield run
    for server in servers:
        server.stop()


@pytest.mark.parametrize("dialect", ["sglang", "trtllm", "llamacpp"])
def test_server_that_speaks_its_dialect_passes(dialect: str, check: Check) -> None:
    """No engine has `prompt_logprobs`, so that sampled speculation stays unverified."""
    found = check(dialect)
    assert found["results"] == {
        "greedy_speculation": "pass",
        "draft_length": "pass",
        "dialect": "pass",
        "sampled_speculation": "no_data",
    }
    assert found["withheld"] == {"sampled_speculation": "engine_unverified"}


def test_server_without_the_counts_of_its_dialect_does_not_speculate(check: Check) -> None:
    found = check("sglang", speculates=False)
    assert found["results"]["dialect"] == "fail"
    assert found["results"]["greedy_speculation"] == "no_data"
    assert found["withheld"].keys() == {"greedy_speculation", "sampled_speculation"}
    [detail] = [row["detail"] for row in found["findings"] if row["subject"] == "dialect"]
    assert detail == "4 of 4 answers have no usage with spec_tokens_details, which dialect sglang reports"


def test_server_of_another_engine_than_written_does_not_speculate(check: Check) -> None:
    """TensorRT-LLM refuses the field by which SGLang is asked for counts."""
    found = check("trtllm", written="sglang")
    assert set(found["results"].values()) == {"no_data"}
    assert found["withheld"].keys() == {"greedy_speculation", "sampled_speculation"}


def test_server_that_answers_in_another_engines_form_fails(check: Check) -> None:
    assert check("sglang", written="trtllm")["results"]["dialect"] == "fail"
