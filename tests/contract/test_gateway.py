"""The gateway in front of an embedded application: it passes bodies as they are.

It refuses `logit_bias` and `min_p` there, as for vLLM, which has neither while it speculates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from slipstream_core.settings import Deadlines, GatewaySettings

from tests.contract.engine_client import MESSAGES, TIMEOUT_S
from tests.contract.test_constraints import JSON_SCHEMA, SCHEMA
from tests.gateway.gateway_thread import Gateway
from tests.support.polling import eventually
from tests.vllm.gateway.conftest import MODEL, manifest


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, embedded: str) -> Iterator[Gateway]:
    path = Path(tmp_path_factory.mktemp("gateway"), "pair.yaml")
    path.write_text(manifest([embedded]))
    started = Gateway(path, GatewaySettings(manifest=path, deadlines=Deadlines(connect_s=10.0)))
    yield started
    started.stop()


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 120, **more}


def ask(gateway: Gateway, mode: str, **more: Any) -> httpx.Response:
    url, headers = f"{gateway.url}/v1/chat/completions", {"x-slipstream-mode": mode}
    return httpx.post(url, json=body(**more), headers=headers, timeout=TIMEOUT_S)


def until_it_speculates(gateway: Gateway) -> None:
    def decision() -> Any:
        headers = {"x-slipstream-mode": "speculative"}
        return httpx.post(f"{gateway.url}/v1/route", json=body(), headers=headers, timeout=TIMEOUT_S).json()

    eventually(lambda: decision()["arm"] == "speculative", "the engine is checked", within_s=120.0, seen=decision)


def test_constrained_answers_speculate_behind_the_gateway(gateway: Gateway) -> None:
    until_it_speculates(gateway)
    plain, speculative = (ask(gateway, mode, response_format=JSON_SCHEMA) for mode in ("plain", "speculative"))
    for answer in (plain, speculative):
        jsonschema.validate(json.loads(answer.json()["choices"][0]["message"]["content"]), SCHEMA)
    drafted = speculative.json()["usage"]["completion_tokens_details"]
    assert drafted["accepted_prediction_tokens"] + drafted["rejected_prediction_tokens"] > 0
    assert plain.json()["choices"] == speculative.json()["choices"]


@pytest.mark.parametrize(
    "feature",
    [
        {"logprobs": True, "top_logprobs": 2},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.3},
        {"structured_outputs": {"choice": ["billing", "delivery"]}},
        {"return_token_ids": True},
        {"n": 2, "seed": 4, "temperature": 0.9},
    ],
    ids=lambda feature: next(iter(feature)),
)
def test_the_gateway_passes_the_features_of_the_engine(gateway: Gateway, feature: dict[str, Any]) -> None:
    answer = ask(gateway, "auto", **feature)
    assert answer.status_code == 200, answer.text
