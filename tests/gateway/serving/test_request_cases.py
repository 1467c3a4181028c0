"""The table of requests against the embedded Triton and against a scripted OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.gateway.serving.request_cases import CASES, Case, check

EACH_CASE = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
EACH_FORM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def scripted(run_gateway: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    upstream = OpenAiServer(scripted=False)
    path = tmp_path_factory.mktemp("cases") / "pair.yaml"
    with run_gateway(path, manifest_text([upstream.url])) as running:
        running.upstream = upstream
        yield running
    upstream.stop()


@EACH_FORM
@EACH_CASE
def test_slipstreams_engine(gateway_url: str, case: Case, stream: bool) -> None:
    check(case, case.slipstream, gateway_url, "slipstream-embedded", stream=stream, sent=None)


@EACH_FORM
@EACH_CASE
def test_a_scripted_server(scripted: Any, case: Case, stream: bool) -> None:
    requests = scripted.upstream.requests
    check(case, case.openai, scripted.url, "acme", stream=stream, sent=lambda: requests[-1])
