"""Two pools of SGLang, of TensorRT-LLM or of llama.cpp behind a gateway. The servers are scripts that answer as the
engines' code does (`scripted_dialects`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
import pytest
from slipstream_core.manifest.dialects import DIALECTS, Dialect
from slipstream_core.manifest.engines import DialectName
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.upstreams.base import Job, Usage
from slipstream_gateway.upstreams.dialect_wire import count_dialect_body, dialect_body, dialect_reader_of
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_gateway.upstreams.openai_server import OpenAiUpstream

from tests.gateway import scripted_dialects as scripted
from tests.gateway.pair_manifest import chat
from tests.support.polling import PATIENCE_S
from tests.support.streams import whole_events_of

pytestmark = pytest.mark.integration

ANSWER = "".join(scripted.WORDS)
COUNTS = {
    "accepted_prediction_tokens": scripted.ACCEPTED,
    "rejected_prediction_tokens": scripted.STEPS * scripted.DRAFT_TOKENS - scripted.ACCEPTED,
}
SPECULATIVE, PLAIN = {"x-slipstream-mode": "speculative"}, {"x-slipstream-mode": "plain"}
Json = dict[str, Any]

every_dialect = pytest.mark.parametrize("dialect", list(scripted.DIALECTS))


class Served(NamedTuple):
    gateway: Any
    plain: scripted.ScriptedDialect
    speculative: scripted.ScriptedDialect

    def post(self, body: Json, headers: dict[str, str] = SPECULATIVE) -> httpx.Response:
        return httpx.post(f"{self.gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)


@pytest.fixture
def serve_dialect(gateway: Callable[..., Any], exit_stack: ExitStack) -> Callable[[str], Served]:
    def start(dialect: str) -> Served:
        kind = scripted.DIALECTS[dialect]
        plain, speculative = (exit_stack.enter_context(kind(speculates=drafts)) for drafts in (False, True))
        text = scripted.pair_text(dialect, plain=plain.url, speculative=speculative.url)
        return Served(gateway(text), plain, speculative)

    return start


@every_dialect
def test_drafts_of_an_answer_are_in_its_usage(dialect: str, serve_dialect: Callable[[str], Served]) -> None:
    served = serve_dialect(dialect)
    answer = served.post(chat("x")).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["model"] == "acme"
    assert answer["usage"]["completion_tokens"] == len(scripted.WORDS)
    assert answer["usage"]["completion_tokens_details"] == COUNTS
    assert answer["usage"]["slipstream"]["target_steps"] == scripted.STEPS
    assert "sglext" not in answer


@every_dialect
def test_drafts_of_a_stream_are_in_the_usage_that_the_client_requested(
    dialect: str, serve_dialect: Callable[[str], Served]
) -> None:
    served = serve_dialect(dialect)
    found = whole_events_of(served.post(chat("x", stream=True, stream_options={"include_usage": True})).text)
    text = "".join(choice["delta"].get("content") or "" for event in found for choice in event["choices"])
    assert text == ANSWER
    assert found[-1]["usage"]["completion_tokens_details"] == COUNTS
    assert [event for event in found[:-1] if not event["choices"]] == []


@every_dialect
def test_stream_without_usage_has_the_events_of_the_answer_alone(
    dialect: str, serve_dialect: Callable[[str], Served]
) -> None:
    served = serve_dialect(dialect)
    found = whole_events_of(served.post(chat("x", stream=True)).text)
    assert all(event["choices"] and not event.get("usage") and "sglext" not in event for event in found)
    assert served.gateway.metric("slipstream_accepted_tokens_total") == scripted.ACCEPTED
    assert served.gateway.metric("slipstream_drafted_tokens_total") == scripted.STEPS * scripted.DRAFT_TOKENS


@every_dialect
def test_plain_answers_are_not_asked_for_counts_and_have_none(
    dialect: str, serve_dialect: Callable[[str], Served]
) -> None:
    served = serve_dialect(dialect)
    answer = served.post(chat("x"), PLAIN).json()
    [request] = served.plain.requests
    assert request.keys() == {"model", "messages"}
    assert (answer["usage"].get("completion_tokens_details") or {}).get("accepted_prediction_tokens") is None


def test_field_that_the_client_set_itself_stays_in_its_answer(serve_dialect: Callable[[str], Served]) -> None:
    served = serve_dialect("sglang")
    body = chat("x", stream=True, return_cached_tokens_details=True)
    [extension] = [event["sglext"] for event in whole_events_of(served.post(body).text) if "sglext" in event]
    assert extension == {"cached_tokens_details": {"device": 2, "host": 0}}
    body = chat("x", return_spec_tokens_details=True)
    answer = served.post(body).json()
    assert answer["sglext"] == {"spec_tokens_details": scripted.DETAILS}
    assert answer["usage"]["completion_tokens_details"] == COUNTS


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        (dialect, name)
        for dialect in scripted.DIALECTS
        for name in ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "logit_bias")
        if name not in DIALECTS[DialectName(dialect)].unsupported
    ],
)
def test_parameter_that_is_inexact_with_speculation_goes_to_the_plain_pool(
    dialect: str, name: str, serve_dialect: Callable[[str], Served]
) -> None:
    served = serve_dialect(dialect)
    answer = served.post(chat("x", temperature=0.7, **{name: {"5": 1} if name == "logit_bias" else 0.5}))
    assert answer.status_code == 200
    assert answer.headers["x-slipstream-reason"] == "unsupported_parameter"
    assert served.speculative.requests == []


@pytest.mark.parametrize("name", ["bad_words", "prompt_logprobs", "guided_json", "structured_outputs"])
@every_dialect
def test_parameter_that_the_engine_lacks_is_refused_by_its_name(
    dialect: str, name: str, serve_dialect: Callable[[str], Served]
) -> None:
    served = serve_dialect(dialect)
    answer = served.post(chat("x", **{name: {"a": 1}}))
    assert answer.status_code == 400
    assert name in answer.json()["error"]["message"]
    assert served.plain.requests == served.speculative.requests == []


def test_parameters_without_effect_reach_no_server_that_refuses_them(serve_dialect: Callable[[str], Served]) -> None:
    served = serve_dialect("trtllm")
    body = chat("x", store=False, metadata={"team": "a"}, service_tier="auto", prompt_cache_key="k", user="u")
    for headers in (SPECULATIVE, PLAIN):
        assert served.post(body, headers).status_code == 200
    assert [request.keys() for request in (*served.plain.requests, *served.speculative.requests)] == [
        {"model", "messages", "user"}
    ] * 2


@every_dialect
def test_every_parameter_of_a_dialect_is_as_its_server_has_it(dialect: str) -> None:
    """The scripted server of TensorRT-LLM has the list of its parameters; the others ignore what they do not know."""
    facts = DIALECTS[DialectName(dialect)]
    assert facts.unsupported.isdisjoint(facts.inexact)
    if dialect == "trtllm":
        server = scripted.ScriptedTrtllm(speculates=True)
        server.stop()
        for name in facts.refused_without_effect | facts.unsupported - {"suffix"}:
            assert server.refused({name: 1}, chat=True) == [name]
        for name in facts.inexact:
            assert server.refused({name: 0.5}, chat=True) == [name]


@every_dialect
async def test_readiness_is_asked_for_at_the_path_of_the_engine(dialect: str) -> None:
    server = scripted.DIALECTS[dialect](speculates=True)
    upstream = OpenAiUpstream(HttpTransport(server.url, connect_timeout_s=5.0), dialect=DIALECTS[DialectName(dialect)])
    try:
        await upstream.probe()
        server.ready = False
        with pytest.raises(Exception, match="status 503"):
            await upstream.probe()
    finally:
        await upstream.aclose()
        server.stop()


SGLANG, TRTLLM, LLAMACPP = map(DIALECTS.__getitem__, (DialectName.SGLANG, DialectName.TRTLLM, DialectName.LLAMACPP))


def job(**more: Any) -> Job:
    request = GenerationRequest(endpoint=more.pop("endpoint", Endpoint.CHAT), model="m", raw=b'{"model": "m"}', **more)
    return Job(request=request, model="m", draft_length=4, request_id="r")


def choices(*averages: object) -> bytes:
    rows = [{"index": 0, "avg_decoded_tokens_per_iter": average} for average in averages]
    return json.dumps({"choices": rows, "usage": {"prompt_tokens": 1, "completion_tokens": 12}}).encode()


def timings(**counts: object) -> bytes:
    return json.dumps(
        {"choices": [], "usage": {"completion_tokens": 12}, "timings": {"predicted_n": 12} | counts}
    ).encode()


def details(**counts: object) -> bytes:
    extension = {"spec_tokens_details": scripted.DETAILS | counts}
    return json.dumps({"choices": [], "usage": {"completion_tokens": 12}, "sglext": extension}).encode()


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (TRTLLM, choices(0.0)),
        (TRTLLM, choices(0.5)),
        (TRTLLM, choices("2.4")),
        (TRTLLM, choices(None)),
        (TRTLLM, choices(2.4, 2.4)),
        (TRTLLM, choices()),
        (SGLANG, details(spec_num_correct_drafts=-1)),
        (SGLANG, details(spec_verify_ct=2**40)),
        (SGLANG, details(spec_num_proposed_drafts=3)),  # fewer than were accepted
        (LLAMACPP, timings(draft_n=4, draft_n_accepted=5)),
        (LLAMACPP, timings(draft_n=-1)),
        (LLAMACPP, timings(draft_n="4")),
        (LLAMACPP, b'{"choices": [], "timings": null}'),
        (SGLANG, b'{"choices": [], "sglext": {"spec_tokens_details": [{}, {}]}}'),
        (SGLANG, b'{"choices": [], "sglext": null, "x": "spec_tokens_details"}'),
    ],
)
def test_counts_that_cannot_be_are_unknown(dialect: Dialect, body: bytes) -> None:
    usage = Usage(output_tokens=12)
    count_dialect_body(body, usage, job(), dialect)
    assert not usage.counted


@pytest.mark.parametrize("dialect", [SGLANG, TRTLLM, LLAMACPP])
def test_stream_without_counts_is_not_counted(dialect: Dialect) -> None:
    usage = Usage(exact=False)
    reader = dialect_reader_of(job(stream=True), usage, dialect)
    reader.read(b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 12}}\n\n')
    assert usage.exact
    assert not usage.counted


def test_text_that_quotes_a_field_is_left_alone() -> None:
    block = b'data: {"choices":[{"index":0,"delta":{"content":"\\"sglext\\" \\"spec_tokens_details\\""}}]}\n\n'
    reader = dialect_reader_of(job(stream=True, include_usage=True), Usage(), SGLANG)
    assert reader.read(block) == block


@pytest.mark.parametrize("average", [1.0, 1.3, 2.4, 5.0, 12.0, 13.0])
def test_counts_from_an_average_add_up(average: float) -> None:
    """Each pass but the prompt's gave its accepted draft tokens and one token of the target's own."""
    usage = Usage(output_tokens=12)
    count_dialect_body(choices(average), usage, job(), TRTLLM)
    assert usage.counted
    assert usage.steps + usage.accepted == 11
    assert usage.drafted >= usage.accepted


def test_timings_without_drafts_are_those_of_an_answer_without_drafts() -> None:
    usage = Usage(output_tokens=12)
    count_dialect_body(timings(), usage, job(), LLAMACPP)
    assert usage.counted
    assert (usage.drafted, usage.accepted, usage.steps) == (0, 0, 11)


def test_no_counts_are_requested_where_there_are_none() -> None:
    assert dialect_body(job(endpoint=Endpoint.RESPONSES), SGLANG) == b'{"model": "m"}'
    assert dialect_body(job(choices=2), SGLANG) == b'{"model": "m"}'
    assert b"return_spec_tokens_details" in dialect_body(job(), SGLANG)
