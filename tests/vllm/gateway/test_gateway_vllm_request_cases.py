"""The table of requests against real vLLM."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.gateway_thread import Gateway
from tests.gateway.serving.request_cases import CASES, Case, check
from tests.support.polling import PATIENCE_S
from tests.vllm.conftest import CONTEXT_TOKENS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_vllm(served: Gateway, case: Case, stream: bool) -> None:
    check(case, case.vllm, served.url, "slipstream-embedded", stream=stream, sent=None)


def test_the_list_of_models_has_the_servers_context(served: Gateway) -> None:
    [model] = httpx.get(f"{served.url}/v1/models", timeout=PATIENCE_S).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("slipstream-embedded", CONTEXT_TOKENS)
