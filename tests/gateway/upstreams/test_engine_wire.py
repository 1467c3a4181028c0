"""What is added to a request for vLLM's plugin, and what becomes of the counts in its answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from slipstream_core.errors import InvalidRequest
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.upstreams.base import Committed, Job, Usage
from slipstream_gateway.upstreams.engine_wire import (
    Counts,
    EngineReader,
    client_body,
    drafting_body,
    fill_part,
    is_own_field,
    read_counts,
)

COUNTS: dict[str, Any] = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.25,
    "acceptance_histogram": [2, 1, 0, 1, 0],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 4,
    "num_draft_tokens": 16,
    "num_spec_tokens": 4,
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}


def job(body: dict[str, Any] | None = None, **changes: Any) -> Job:
    known = {"model": "public", "messages": [{"role": "user", "content": "Hi"}], **(body or {})}
    request = GenerationRequest(
        endpoint=Endpoint.CHAT,
        model="public",
        stream=bool(known.get("stream")),
        include_usage="stream_options" in known,
        features=frozenset(known) & {"vllm_xargs"},
        raw=json.dumps(known).encode(),
    )
    fields: dict[str, Any] = {"model": "own", "draft_length": 4, "request_id": "r", "request_class": "code/long"}
    return Job(request=request, **fields | changes)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"


def sent(asked: Job) -> dict[str, Any]:
    return dict(json.loads(drafting_body(asked)))


def told(data: bytes) -> dict[str, Any]:
    return dict(json.loads(data.removeprefix(b"data: ")))


def test_a_request_carries_its_draft_length_and_its_class() -> None:
    body = sent(job({"temperature": 0.5}))
    assert body["vllm_xargs"] == {"slipstream_draft_length": 4, "slipstream_class": "code/long"}
    assert (body["model"], body["temperature"]) == ("own", 0.5)
    assert sent(job(draft_length=0, request_class=""))["vllm_xargs"] == {"slipstream_draft_length": 0}
    assert sent(job(adaptive=True))["vllm_xargs"]["slipstream_adaptive"] == 1
    assert sent(job(protected=True))["vllm_xargs"]["slipstream_protect"] == 1
    assert "slipstream_protect" not in sent(job())["vllm_xargs"]
    assert sent(job({"stream": True}))["stream_options"] == {"include_usage": True}


def test_an_answer_that_is_resumed_carries_its_tokens() -> None:
    body = json.loads(drafting_body(job(draft_length=0, request_class=""), resumed_ids=(5, 6)))
    assert body["vllm_xargs"] == {"slipstream_draft_length": 0, "slipstream_resume_token_ids": [5, 6]}


@pytest.mark.parametrize(
    ("own", "seeded", "expected"), [(None, True, 11), (7, True, 7), (7, False, 7), (None, False, None)]
)
def test_a_server_gets_the_gateways_seed_where_that_costs_nothing(
    own: int | None, seeded: bool, expected: int | None
) -> None:
    asked = job({} if own is None else {"seed": own}, seeded=seeded)
    asked = msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, seed=own or 11))
    assert sent(asked).get("seed") == expected
    shown = told(client_body(event(usage=USAGE).removeprefix(b"data: "), Usage(), asked))["usage"]["slipstream"]["seed"]
    assert shown == expected


def test_the_clients_own_arguments_stay() -> None:
    body = sent(job({"vllm_xargs": {"own": [1, "a"]}}))
    assert body["vllm_xargs"] == {"own": [1, "a"], "slipstream_draft_length": 4, "slipstream_class": "code/long"}


@pytest.mark.parametrize(
    ("xargs", "param", "words"),
    [
        ({"slipstream_draft_length": 4}, "vllm_xargs.slipstream_draft_length", ("got 4", "x-slipstream-draft-length")),
        ({"slipstream_class": None}, "vllm_xargs.slipstream_class", ("got null", "remove it")),
        ({"slipstream_resume_token_ids": [1]}, "vllm_xargs.slipstream_resume_token_ids", ("got [1]", "remove it")),
        ([], "vllm_xargs", ("expected an object, got [].",)),
        (7, "vllm_xargs", ("expected an object, got 7.",)),
        ("x" * 500, "vllm_xargs", ("xxx…",)),
    ],
)
def test_the_gateways_arguments_and_what_is_no_object_are_refused(
    xargs: Any, param: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        drafting_body(job({"vllm_xargs": xargs}))
    assert refused.value.param == param
    assert param in str(refused.value)
    for word in words:
        assert word in str(refused.value)
    assert len(str(refused.value)) < 250


def refusal(param: str | None, message: str = "bad") -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}).encode()


@pytest.mark.parametrize("name", ["slipstream_draft_length", "slipstream_class"])
def test_a_refusal_of_the_gateways_own_field_is_known_by_its_parameter(name: str) -> None:
    assert is_own_field(refusal(f"vllm_xargs.{name}"))


@pytest.mark.parametrize(
    "body",
    [
        refusal("temperature", "temperature is 'vllm_xargs.slipstream_draft_length'"),
        refusal(None, "vllm_xargs.slipstream_class"),
        refusal("vllm_xargs.slipstream_other"),
        b'{"error": "vllm_xargs.slipstream_class"}',
        b'"vllm_xargs.slipstream_class"',
        b"vllm_xargs.slipstream_class",
        b"\xff",
    ],
)
def test_a_refusal_that_only_quotes_the_gateways_field_is_the_clients(body: bytes) -> None:
    assert not is_own_field(body)


def counts(**changes: Any) -> Counts:
    found = read_counts(json.dumps({"metrics": {"speculative_decoding": COUNTS | changes}}).encode())
    assert found is not None
    return found


def test_counts_become_usage() -> None:
    usage = Usage(output_tokens=9)
    counts().fill(usage, output_tokens=9, draft_length=4, choices=1)
    assert (usage.drafted, usage.accepted, usage.steps, usage.rejected_at) == (16, 4, 4, (2, 1, 0, 1))


@pytest.mark.parametrize(
    ("changes", "output_tokens", "steps", "rejected_at"),
    [
        ({"num_draft_tokens": 14}, 9, 4, ()),  # a step drafted less, and nothing says which
        (
            {"num_draft_tokens": 14, "per_step_accepted": [0, 1, 0, 3], "per_step_drafted": [4, 4, 2, 4]},
            9,
            4,
            (2, 1, 0, 1),
        ),
        (
            {"num_draft_tokens": 13, "per_step_accepted": [0, 0, 1, 3], "per_step_drafted": [4, 4, 1, 4]},
            9,
            4,
            (2, 0, 0, 1),
        ),
        ({}, 20, 15, (2, 1, 0, 1)),  # it was told to stop drafting: 11 passes gave one token each
        ({}, 7, 4, (2, 1, 0, 1)),  # the last step's tokens went beyond the limit
        (
            {
                "acceptance_histogram": [0] * 5,
                "num_spec_steps": 0,
                "num_accepted_draft_tokens": 0,
                "num_draft_tokens": 0,
            },
            9,
            8,
            (0, 0, 0, 0),
        ),
    ],
)
def test_steps_and_rejections_are_said_as_far_as_they_are_known(
    changes: dict[str, Any], output_tokens: int, steps: int, rejected_at: tuple[int, ...]
) -> None:
    usage = Usage()
    counts(**changes).fill(usage, output_tokens=output_tokens, draft_length=4, choices=1)
    assert (usage.steps, usage.rejected_at) == (steps, rejected_at)


@pytest.mark.parametrize(
    ("told_s", "engine_s"), [(0.25, 0.25), (0, 0.0), (None, None), (-1.0, None), (1e9, None), ("0.1", None)]
)
def test_engine_time_is_passed_on_and_what_cannot_be_is_none(told_s: Any, engine_s: float | None) -> None:
    usage = Usage(output_tokens=9)
    counts(engine_seconds=told_s).fill(usage, output_tokens=9, draft_length=4, choices=1)
    assert (usage.engine_s, usage.drafted) == (engine_s, 16)
    body = told(client_body(json.dumps({"usage": USAGE}).encode(), usage, job()))
    assert body["usage"]["slipstream"]["engine_seconds"] == engine_s


def test_counts_of_a_resumed_answer_are_those_of_its_last_part() -> None:
    usage = Usage(output_tokens=30)
    resumed = job(committed=Committed(text="...", output_tokens=21, resumed=("stalled",)))
    fill_part(usage, counts(), resumed)
    assert usage.steps == 4
    body = told(client_body(json.dumps({"usage": USAGE}).encode(), usage, resumed))
    assert body["usage"]["slipstream"]["resumed"] == ["stalled"]


@pytest.mark.parametrize(
    ("others", "stream", "left"),
    [
        ({}, False, "nothing"),
        ({}, True, "nothing"),
        ({"queue_time_ms": None}, False, "nothing"),
        ({"queue_time_ms": 1.5}, False, {"queue_time_ms": 1.5}),
        ({"queue_time_ms": 1.5}, True, {"queue_time_ms": 1.5}),
    ],
)
def test_what_else_a_server_measures_stays(others: dict[str, Any], stream: bool, left: Any) -> None:
    data = json.dumps({"usage": USAGE, "metrics": {**others, "speculative_decoding": COUNTS}}).encode()
    body = told(client_body(data, Usage(), job({"stream": True} if stream else None)))
    assert body.get("metrics", "nothing") == left


def test_details_that_the_server_gives_stay() -> None:
    usage = USAGE | {"completion_tokens_details": {"reasoning_tokens": 3}}
    body = told(client_body(json.dumps({"usage": usage}).encode(), Usage(drafted=5, accepted=2), job()))
    details = {"reasoning_tokens": 3, "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 3}
    assert body["usage"]["completion_tokens_details"] == details


def read(asked: Job, *blocks: bytes) -> tuple[bytes, Usage]:
    usage = Usage(exact=False)
    reader = EngineReader(asked, usage)
    return b"".join([reader.read(block) for block in blocks]), usage


FINAL = event(usage=USAGE, metrics={"speculative_decoding": COUNTS})
TEXT = event(choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": None}])


def test_the_last_event_of_a_stream_says_what_was_drafted_where_the_client_asked() -> None:
    asked = job({"stream": True, "stream_options": {"include_usage": True}})
    data, usage = read(asked, TEXT, FINAL + b"data: [DONE]\n\n")
    first, last, done = data.split(b"\n\n")[:3]
    assert first + b"\n\n" == TEXT
    assert done == b"data: [DONE]"
    assert told(last)["usage"]["slipstream"]["rejected_at"] == [2, 1, 0, 1]
    assert "metrics" not in told(last)
    assert (usage.drafted, usage.accepted, usage.output_tokens, usage.exact) == (16, 4, 9, True)


def test_a_client_that_asked_for_no_usage_gets_none_and_it_is_learnt_all_the_same() -> None:
    data, usage = read(job({"stream": True}), TEXT, FINAL, b"data: [DONE]\n\n")
    assert data == TEXT + b"data: [DONE]\n\n"
    assert (usage.drafted, usage.accepted) == (16, 4)


def test_text_that_quotes_the_name_passes_as_it_came() -> None:
    quoting = event(choices=[{"index": 0, "delta": {"content": '"speculative_decoding": {}'}, "finish_reason": None}])
    raw = event(choices=[], speculative_decoding=1)
    data, usage = read(job({"stream": True}), quoting, raw)
    assert data == quoting + raw
    assert usage.drafted == 0
