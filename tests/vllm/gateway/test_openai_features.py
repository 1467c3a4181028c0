"""The official `openai` client gets through the gateway what it gets from vLLM directly, feature by feature.

Directly means a vLLM server without speculation and without Slipstream's plugin. The gateway stands in front of one
server with the plugin, and has that other one as the pool for what vLLM refuses while it speculates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.support.manifests import pair_yaml
from tests.support.openai_client.chat import CHAT
from tests.support.openai_client.features import CALL, Feature, Outcome, Target
from tests.support.openai_client.others import OTHERS
from tests.support.openai_client.results import differences, result_of
from tests.support.polling import eventually

# Both arms of 80 features. test_gateway_vllm_request_cases.py has the table of requests.
pytestmark = pytest.mark.slow

SERVED = "slipstream-embedded"
PUBLIC = "acme"
WAIT_S = 120.0
FEATURES = [*CHAT, *OTHERS]


class Arm(NamedTuple):
    """The gateway as a target; `decisions` are the headers of its answers, in order."""

    target: Target
    decisions: list[dict[str, str]]


def client(url: str, headers: dict[str, str] | None = None) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=WAIT_S, default_headers=headers
    )


def manifest(endpoint: str, plain: str | None) -> str:
    pool = f'plain: {{endpoints: ["{plain}"], model: {SERVED}}}, ' if plain is not None else ""
    engine = f'{{kind: vllm, model: {SERVED}, {pool}endpoints: ["{endpoint}"]}}'
    policy = ", allowClientMode: true, maxTemperature: 2, parityShare: 0"
    return pair_yaml(engine, "maxDraftTokens: 4", model=PUBLIC, policy=policy)


@pytest.fixture(scope="module")
def gateway(start_gateway: Callable[..., Gateway], vllm_server: VllmServer, plain_vllm_server: VllmServer) -> Gateway:
    running = start_gateway(manifest(vllm_server.url, plain_vllm_server.url))
    for temperature in (0.0, 0.8):  # servers are checked before anything speculates there
        until_speculative(running, temperature)
    return running


def until_speculative(running: Gateway, temperature: float) -> None:
    body = {"model": PUBLIC, "messages": [{"role": "user", "content": "hi"}], "temperature": temperature}
    headers = {"x-slipstream-mode": "speculative"}

    def decision() -> Any:
        return httpx.post(f"{running.url}/v1/route", json=body, headers=headers, timeout=WAIT_S).json()

    eventually(lambda: decision()["arm"] == "speculative", "speculation", within_s=WAIT_S, seen=decision)


@pytest.fixture(scope="module")
def direct(plain_vllm_server: VllmServer) -> Callable[[Feature], Any]:
    """The result of a feature against the server itself; asked once."""
    target, known = Target(client(plain_vllm_server.url), SERVED), dict[str, Any]()

    def result(feature: Feature) -> Any:
        key = f"{feature.area}: {feature.name}"
        if key not in known:
            known[key] = result_of(feature.run, target)
        return known[key]

    return result


@pytest.fixture(params=["plain", "speculative"], scope="module")
def arm(request: pytest.FixtureRequest, gateway: Gateway) -> Arm:
    """One arm of the gateway, which the client asks for."""
    made = client(gateway.url, {"x-slipstream-mode": request.param})
    decisions: list[dict[str, str]] = []
    made._client.event_hooks["response"].append(lambda answer: decisions.append(dict(answer.headers)))
    return Arm(Target(made, PUBLIC), decisions)


def names(feature: Feature) -> str:
    return f"{feature.area}: {feature.name}"


@pytest.mark.parametrize("feature", FEATURES, ids=names)
def test_feature_is_the_same_through_the_gateway(
    feature: Feature, arm: Arm, direct: Callable[[Feature], Any], request: pytest.FixtureRequest
) -> None:
    asked = request.node.callspec.params["arm"]
    arm.decisions.clear()
    found, wanted = result_of(feature.run, arm.target), direct(feature)
    if feature.vllm in (Outcome.OWN_ERROR, Outcome.OWN_ANSWER):
        check_own(feature, found)
        return
    assert list(differences(found, wanted)) == []
    assert ("exception" in found) is (feature.vllm is Outcome.SERVER_ERROR or "timeout" in feature.name)
    if feature.vllm is Outcome.FROM_PLAIN_POOL:
        assert {each["x-slipstream-reason"] for each in arm.decisions} == {"unsupported_parameter"}
    elif feature.vllm is Outcome.SAME and arm.decisions:
        assert {each["x-slipstream-arm"] for each in arm.decisions} == {asked}


def check_own(feature: Feature, found: Any) -> None:
    if feature.vllm is Outcome.OWN_ANSWER:
        assert found in (["model"], "model")
        return
    assert found["exception"] in ("BadRequestError", "NotFoundError")
    assert found["error"]["param"] == feature.param
    assert set(found["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("feature", [one for one in FEATURES if one.vllm is Outcome.FROM_PLAIN_POOL], ids=names)
def test_without_a_plain_pool_the_parameter_is_refused_by_its_name(
    feature: Feature, start_gateway: Callable[..., Gateway], vllm_server: VllmServer
) -> None:
    alone = start_gateway(manifest(vllm_server.url, None))
    refused = result_of(feature.run, Target(client(alone.url), PUBLIC))
    assert (refused["exception"], refused["error"]["param"]) == ("BadRequestError", feature.param)
    directly = result_of(feature.run, Target(client(vllm_server.url), SERVED))
    assert (directly["exception"], directly["error"]["param"]) == ("BadRequestError", None)


def test_drafts_of_a_response_are_counted_as_those_of_a_chat(gateway: Gateway) -> None:
    made = client(gateway.url, {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "4"})
    asked: dict[str, Any] = {"model": PUBLIC, "temperature": 0}
    chat = made.chat.completions.create(messages=[{"role": "user", "content": CALL}], max_tokens=24, **asked)
    whole = made.responses.create(input=CALL, max_output_tokens=24, **asked)
    *_, last = made.responses.create(input=CALL, max_output_tokens=24, stream=True, **asked)
    details = chat.usage.completion_tokens_details.model_dump()
    wanted = {name: details[f"{name}_prediction_tokens"] for name in ("accepted", "rejected")}
    assert wanted["accepted"] + wanted["rejected"] > 0
    for response in (whole, last.response):
        told = response.usage.output_tokens_details.model_dump()
        assert {name: told[f"{name}_prediction_tokens"] for name in wanted} == wanted


def test_state_of_one_server_is_the_servers_own_business(
    start_gateway: Callable[..., Gateway], vllm_server: VllmServer
) -> None:
    """A model of one server: the response that is asked for may be there."""
    alone = start_gateway(manifest(vllm_server.url, None))

    def run(target: Target) -> Any:
        return target.client.responses.create(model=target.model, input="hi", previous_response_id="resp_1")

    through = result_of(run, Target(client(alone.url), PUBLIC))
    assert list(differences(through, result_of(run, Target(client(vllm_server.url), SERVED)))) == []
    assert through["error"]["message"] == "Response with id 'resp_1' not found."
