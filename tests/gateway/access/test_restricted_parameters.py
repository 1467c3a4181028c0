"""Parameters that act on other callers or on the server, and the keys that may send them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from slipstream_core.errors import CommandError
from slipstream_core.parameter_names import KNOWN_PARAMETERS
from slipstream_core.restricted_parameters import Restricted
from slipstream_core.types import GenerationRequest
from slipstream_gateway.access.records import parse_access
from slipstream_gateway.api.parse import parse_request

MESSAGES = [{"role": "user", "content": "tokens=1"}]
CHAT = {"model": "acme", "messages": MESSAGES}
COMPLETION = {"model": "acme", "prompt": "tokens=1"}
RESPONSE = {"model": "acme", "input": "tokens=1"}
PATHS = {"messages": "chat/completions", "prompt": "completions", "input": "responses"}


def parts(*content: Mapping[str, object]) -> dict[str, object]:
    return {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "tokens=1"}, *content]}]}


def items(*given: Mapping[str, object]) -> dict[str, object]:
    return {**RESPONSE, "input": [{"role": "user", "content": "tokens=1"}, *given]}


def content(*given: Mapping[str, object]) -> dict[str, object]:
    return items({"role": "user", "content": list(given)})


PART = "messages[0].content[1]"
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SCHEMA = {"type": "object", "properties": {"uuid": {"type": "string"}, "file_id": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}
NESTED = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}]}
RESTRICTED = [
    ({**CHAT, "priority": -1}, Restricted.PRIORITY, "priority"),
    ({**COMPLETION, "priority": 10}, Restricted.PRIORITY, "priority"),
    ({**RESPONSE, "priority": -1}, Restricted.PRIORITY, "priority"),
    ({**CHAT, "request_id": "another"}, Restricted.REQUEST_ID, "request_id"),
    ({**RESPONSE, "request_id": "resp_1"}, Restricted.REQUEST_ID, "request_id"),
    ({**CHAT, "session_id": "another"}, Restricted.SESSION_ID, "session_id"),
    ({**CHAT, "kv_transfer_params": {"remote_host": "10.0.0.1"}}, Restricted.KV_TRANSFER_PARAMS, "kv_transfer_params"),
    ({**CHAT, "ec_transfer_params": {}}, Restricted.EC_TRANSFER_PARAMS, "ec_transfer_params"),
    ({**CHAT, "vllm_xargs": {"kv_transfer_params": "x"}}, Restricted.VLLM_XARGS, "vllm_xargs"),
    ({**CHAT, "chat_template": "{{ 1 }}"}, Restricted.CHAT_TEMPLATE, "chat_template"),
    (
        {**CHAT, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}},
        Restricted.CHAT_TEMPLATE,
        "chat_template_kwargs.chat_template",
    ),
    ({**CHAT, "media_io_kwargs": {"video": {"num_frames": -1}}}, Restricted.MEDIA_IO_KWARGS, "media_io_kwargs"),
    ({**CHAT, "mm_processor_kwargs": {"max_pixels": 10**9}}, Restricted.MM_PROCESSOR_KWARGS, "mm_processor_kwargs"),
    ({**COMPLETION, "prompt_embeds": "gA=="}, Restricted.PROMPT_EMBEDS, "prompt_embeds"),
    (parts({"type": "prompt_embeds", "data": "gA=="}), Restricted.PROMPT_EMBEDS, f"{PART}.type"),
    (parts({"type": "image_embeds", "image_embeds": "gA=="}), Restricted.IMAGE_EMBEDS, f"{PART}.type"),
    (
        parts({"type": "text", "text": "", "audio_embeds": "A"}),
        Restricted.AUDIO_EMBEDS,
        "messages[0].content[1].audio_embeds",
    ),
    (parts({**IMAGE, "uuid": "another"}), Restricted.UUID, f"{PART}.uuid"),
    (parts({"type": "file", "file": {"file_id": "file-1"}}), Restricted.FILE_ID, f"{PART}.file_id"),
    (content({"type": "input_file", "file_id": "file-1"}), Restricted.FILE_ID, "input[1].file_id"),
    (items({"type": "computer_call_output", "output": {"file_id": "file-1"}}), Restricted.FILE_ID, "input[1].file_id"),
    (items({"type": "item_reference", "id": "msg_1"}), Restricted.ITEM_REFERENCE, "input[1].type"),
    ({**RESPONSE, "previous_response_id": "resp_1"}, Restricted.PREVIOUS_RESPONSE_ID, "previous_response_id"),
    ({**RESPONSE, "conversation": "conv_1"}, Restricted.CONVERSATION, "conversation"),
    ({"model": "acme", "input": "x", "prompt": {"id": "pmpt_1"}}, Restricted.STORED_PROMPT, "prompt"),
    ({**RESPONSE, "tools": [{"type": "mcp", "server_url": "http://10.0.0.1"}]}, Restricted.SERVER_TOOLS, "tools"),
    ({**RESPONSE, "tools": [NESTED]}, Restricted.SERVER_TOOLS, "tools"),
    (items({"type": "additional_tools", "tools": [{"type": "mcp"}]}), Restricted.SERVER_TOOLS, "tools"),
    (items({"type": "tool_search_output", "tools": [NESTED]}), Restricted.SERVER_TOOLS, "tools"),
    ({**RESPONSE, "tools": [{"type": "shell"}]}, Restricted.SERVER_TOOLS, "tools"),
    ({**RESPONSE, "tools": [{"type": "shell", "environment": {"type": "auto"}}]}, Restricted.SERVER_TOOLS, "tools"),
    ({**RESPONSE, "tools": [{"type": "tool_search", "execution": "server"}]}, Restricted.SERVER_TOOLS, "tools"),
    ({**CHAT, "web_search_options": {}}, Restricted.SERVER_TOOLS, "web_search_options"),
    ({**CHAT, "custom_logit_processor": "x"}, Restricted.UNKNOWN, "custom_logit_processor"),
    ({**CHAT, "logits_processors": ["os.system"]}, Restricted.UNKNOWN, "logits_processors"),
]
DISGUISED = [
    ({**CHAT, "Model": "secret"}, "Model"),
    ({**CHAT, "MAX_TOKENS": 9}, "MAX_TOKENS"),
    ({**CHAT, "maxTokens": 9}, "maxTokens"),
    ({**CHAT, "max_to\u212aens": 9}, "max_to\u212aens"),  # Go takes the Kelvin sign for a k
    ({**CHAT, "max_token\u017f": 9}, "max_token\u017f"),  # and the long s for an s
    ({**CHAT, "Priority": -1}, "Priority"),
    ({**CHAT, "n ": 9}, "n "),
]
FREE = [
    {**CHAT, "priority": 0, "request_id": None, "chat_template": None, "user": "me", "store": True},
    {**CHAT, "chat_template_kwargs": {"enable_thinking": False}, "documents": [{"text": "x"}], "cache_salt": "s"},
    {**CHAT, "tools": [FUNCTION], "structured_outputs": {"regex": "a"}, "stop_token_ids": [1], "min_tokens": 1},
    {**RESPONSE, "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}], "prompt": None},
    {**RESPONSE, "tools": [{"type": "shell", "environment": {"type": "local"}}]},
    {**RESPONSE, "tools": [{"type": "tool_search", "execution": "client"}]},
    items({"type": "additional_tools", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}),
    {**CHAT, "chat_template_kwargs": {"chat_template": None}},
    parts(IMAGE),
    parts({**IMAGE, "uuid": None}, {"type": "text", "text": "", "audio_embeds": None}),
    parts({"type": "text", "text": "file_id uuid"}),
    content({"type": "input_image", "image_url": IMAGE["image_url"]["url"], "file_id": None}),
    content({"type": "input_text", "text": "x"}),
    {**COMPLETION, "prompt": ["x", "y"]},
]


def parsed(body: object) -> GenerationRequest:
    return parse_request(json.dumps(body).encode())


@pytest.mark.parametrize(("body", "parameter", "path"), RESTRICTED)
def test_what_acts_on_others_is_found(body: dict[str, Any], parameter: Restricted, path: str) -> None:
    assert parsed(body).restricted == ((parameter, path),)


@pytest.mark.parametrize(("body", "path"), DISGUISED)
def test_a_name_that_only_some_servers_read_is_for_no_key(body: dict[str, Any], path: str) -> None:
    assert parsed(body).restricted == ((None, path),)


@pytest.mark.parametrize("body", FREE)
def test_what_acts_on_the_own_answer_is_free(body: dict[str, Any]) -> None:
    assert parsed(body).restricted == ()


def test_of_equal_names_the_last_one_counts_and_is_forwarded() -> None:
    twice = b'"n": 8, "n": 1, "priority": -1, "priority": 0'
    request = parse_request(b'{"model": "acme", "messages": [{"role": "user", "content": "x"}], %b}' % twice)
    assert (request.n, request.restricted) == (1, ())
    assert json.loads(request.raw, object_pairs_hook=list)[2:] == [("n", 1), ("priority", 0)]


def test_what_only_other_decoders_read_is_for_no_key() -> None:
    tools = b'"tools": [{"type": "mcp", "x": 1e999}]'
    request = parse_request(b'{"model": "acme", "messages": [{"role": "user", "content": "x"}], %b}' % tools)
    assert request.restricted == ((None, "tools"),)


def test_every_restricted_parameter_is_known_or_named_in_its_place_and_tested() -> None:
    in_parts = {"image_embeds", "audio_embeds", "video_embeds", "uuid", "item_reference", "file_id"}
    no_names = {Restricted.SERVER_TOOLS, Restricted.UNKNOWN}
    assert {str(one) for one in set(Restricted) - no_names} <= KNOWN_PARAMETERS | in_parts
    assert {parameter for _, parameter, _ in RESTRICTED} == set(Restricted) - {Restricted.VIDEO_EMBEDS}


def post(url: str, key: str, body: Mapping[str, Any], path: str = "") -> httpx.Response:
    where = path or next(PATHS[name] for name in ("input", "messages", "prompt") if name in body)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.post(f"{url}/v1/{where}", content=json.dumps(body), headers=headers, timeout=60)


def test_a_key_may_send_what_it_has_permissions_for(served: Callable[..., Any], keys: Any) -> None:
    plain = keys.create()
    every = keys.create(*[word for one in Restricted for word in ("--parameter", str(one))])
    running = served()
    for body, parameter, path in RESTRICTED:
        refused = post(running.url, plain, body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (403, "insufficient_permissions", path)
        assert f"'{parameter}'" in error["message"]
        assert post(running.url, plain, body, "route").status_code == 403
    for body, path in DISGUISED:
        refused = post(running.url, every, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, path)
    assert running.upstream.requests == []
    for body, _, path in RESTRICTED:
        answer = post(running.url, every, body)
        assert answer.status_code != 403, (path, answer.text)
        assert answer.status_code < 500, (path, answer.text)
    for body in FREE:
        answer = post(running.url, plain, body)
        assert answer.status_code == 200, answer.text


def test_a_misspelt_parameter_gets_a_suggestion(served: Callable[..., Any], keys: Any) -> None:
    key = keys.create()
    refused = post(served().url, key, {**CHAT, "top-p": 0.5})
    assert refused.json()["error"]["message"] == "This key may not send 'top-p'. Did you mean 'top_p'?"
    file = {"keys": [], "jwt": {"issuer": "i", "audiences": ["a"], "jwks": "f", "rules": []}}
    rule = {"claim": "c", "value": "v", "scopes": {"parameters": ["priority", "chat_templat"]}}
    with pytest.raises(CommandError, match=r"'chat_templat'.*rules\[0\].*Did you mean 'chat_template'\?"):
        parse_access(json.dumps({**file, "jwt": {**file["jwt"], "rules": [rule]}}).encode(), name="keys.json")


def test_without_keys_everything_passes(gateway: Callable[..., Any], openai_server: Callable[..., Any]) -> None:
    from tests.gateway.pair_manifest import manifest_text

    upstream = openai_server()
    running = gateway(manifest_text([upstream.url]))
    for body in ({**CHAT, "priority": -1, "anything": 1}, {**CHAT, "Model": "other"}):
        assert httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
