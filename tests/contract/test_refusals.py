"""Requests that an engine cannot serve get OpenAI's error, which names the field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.engine_client import CHAT, COMPLETION, MESSAGES, Engine, Refused

BAD = [
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 1.5),
    ("max_tokens", "many"),
    ("max_tokens", -1),
    ("n", 0),
    ("seed", "x"),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("stop", 5),
    ("logit_bias", {"a": 1}),
    ("stream_options", {"include_usage": True}),
    ("vllm_xargs", 3),
]
XARGS = [
    *(("slipstream_draft_length", value) for value in (-1, 1000, 2.5, True, "4", [1])),
    *(("slipstream_class", value) for value in ("A b", "a/b/c", "a" * 65, 3)),
    ("slipstream_adaptive", 2),
    ("slipstream_protect", 2),
    ("slipstream_protect", True),
    ("slipstream_resume_token_ids", "x"),
    ("slipstream_resume_token_ids", [-1]),
    ("slipstream_unknown", 1),
]


async def refused(engine: Engine, path: str, **more: Any) -> Refused:
    with pytest.raises(Refused) as found:
        await engine.ask(path, **more)
    assert set(found.value.error) >= {"message", "type", "param", "code"}
    return found.value


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(("field", "value"), BAD)
async def test_a_bad_value_is_refused_with_its_field(engine: Engine, path: str, field: str, value: object) -> None:
    error = await refused(engine, path, **{field: value})
    assert error.status == 400
    assert error.names(field)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("field", "value"), XARGS)
async def test_a_bad_field_of_the_contract_is_refused(engine: Engine, stream: bool, field: str, value: object) -> None:
    error = await refused(engine, CHAT, stream=stream, vllm_xargs={field: value})
    assert error.status == 400
    assert error.error["param"] == f"vllm_xargs.{field}"
    assert f"vllm_xargs.{field}" in error.error["message"]


@pytest.mark.parametrize(
    ("path", "more", "field"),
    [
        (CHAT, {"messages": []}, "message"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "content"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": MESSAGES * 400}, "tokens"),
        (COMPLETION, {"prompt": "word " * 6000}, "tokens"),
        (COMPLETION, {"prompt": [10**9]}, "token"),
        (CHAT, {"response_format": {"type": "yaml"}}, "response_format"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema"),
        (CHAT, {"structured_outputs": {"regex": "(["}}, "regex"),
    ],
)
async def test_an_impossible_request_is_refused(engine: Engine, path: str, more: dict[str, Any], field: str) -> None:
    error = await refused(engine, path, **more)
    assert error.status == 400
    assert error.names(field)


async def test_a_body_that_is_no_object_is_refused(engine: Engine) -> None:
    for content in (b"", b"{", b"[]", b'"x"', b"\xff"):
        response = await engine.http.post(CHAT, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400


async def test_an_unknown_model_is_not_found(engine: Engine) -> None:
    error = await refused(engine, CHAT, model="another")
    assert error.status == 404


async def test_an_unknown_path_is_not_found(engine: Engine) -> None:
    assert (await engine.http.get("/slipstream/nothing")).status_code == 404
    assert (await engine.http.get(CHAT)).status_code == 405


async def test_a_refusal_leaves_the_engine_in_service(engine: Engine) -> None:
    await refused(engine, CHAT, vllm_xargs={"slipstream_draft_length": -1})
    assert (await engine.ask()).ids
