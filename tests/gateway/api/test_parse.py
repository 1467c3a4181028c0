"""Bodies into requests: what is accepted, what is a feature, and what an error says."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.errors import InvalidRequest
from slipstream_core.random_bytes import random_seed
from slipstream_core.types import Mode
from slipstream_gateway.api.parse import parse_chat_request, parse_completion_request
from slipstream_gateway.api.request import RequestOverrides

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


@pytest.mark.parametrize(
    ("raw", "param", "part"),
    [
        (b"", None, "not valid JSON"),
        (b'{"model": "m", ', None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'{"model": "\xff"}', None, "UTF-8"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "user": "\xff"}', None, "UTF-8"),
        (b'{"model": "\\ud800"}', None, "surrogate"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, None, "nested too deeply"),
        (chat(temperature=float("nan")), None, "not valid JSON"),
        (b'{"temperature": 1e999}', "temperature", "out of range"),
        (b'{"model": "m"}', "messages", "Missing"),
        (b'{"messages": [{"role": "user", "content": "x"}]}', "model", "Missing"),
        (chat(messages=[]), "messages", "at least one message"),
        (chat(messages="hello"), "messages", 'got "hello"'),
        (chat(messages=[{"content": "x"}]), "messages[0].role", "Missing"),
        (chat(messages=[{"role": "root", "content": "x"}]), "messages[0].role", 'got "root"'),
        (chat(messages=[{"role": "user", "content": None}]), "messages[0].content", "got null"),
        (chat(messages=[{"role": "user", "content": 5}]), "messages[0].content", "got 5"),
        (chat(messages=[{"role": "user", "content": []}]), "messages[0].content", "got []"),
        (chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text", "Missing"),
        (chat(temperature="hot"), "temperature", 'got "hot"'),
        (chat(temperature=-0.1), "temperature", "got -0.1"),
        (chat(top_p=1.5), "top_p", "got 1.5"),
        (chat(top_k=-2), "top_k", "got -2"),
        (chat(max_tokens=0), "max_tokens", "got 0"),
        (chat(max_completion_tokens=0), "max_completion_tokens", "got 0"),
        (chat(max_tokens=-5), "max_tokens", "got -5"),
        (chat(max_tokens=10**30), "max_tokens", "2147483647"),
        (chat(max_tokens=1.5), "max_tokens", "got 1.5"),
        (chat(max_tokens=5, max_completion_tokens=6), "max_tokens", "differ"),
        (chat(n=0), "n", "got 0"),
        (chat(n=True), "n", "got true"),
        (chat(seed=2**63), "seed", "9223372036854775808"),
        (chat(seed="1"), "seed", 'got "1"'),
        (chat(stop=[""]), "stop", "empty"),
        (chat(stop=5), "stop", "got 5"),
        (chat(stream="yes"), "stream", 'got "yes"'),
        (chat(stream_options={"include_usage": True}), "stream_options", "only allowed"),
    ],
)
def test_bad_body_names_the_field_and_the_value(raw: bytes, param: str | None, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(raw)
    assert caught.value.param == param
    assert part in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        (None, "Missing"),
        ([], "got []"),
        ([[]], "got []"),
        ([1, "a"], "mixed"),
        ([-1], "-1"),
        ([2**31], "token id"),
        ([[1], []], "got []"),
        ([[1], [-7]], "-7"),
    ],
)
def test_bad_prompt_is_refused(prompt: Any, part: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt") as caught:
        parse_completion_request(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert part in str(caught.value)


def test_prompts_are_text_or_token_ids_and_several_are_a_feature() -> None:
    def parse(prompt: Any) -> Any:
        return parse_completion_request(json.dumps({"model": "m", "prompt": prompt}).encode())

    assert parse("hello").prompt == parse(["hello"]).prompt == "hello"
    assert parse([1, 2]).prompt == parse([[1, 2]]).prompt == (1, 2)
    assert parse(["a", "b"]).features == {"prompt"}


@pytest.mark.parametrize(
    ("fields", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2], [3]], "n": 2}, 6),
        ({"best_of": 5, "n": 2}, 5),
        ({"prompt": ["a"] * 8}, 8),
        ({"prompt": ["a"] * 60_000}, 60_000),
        ({"prompt": ["a"] * 3, "best_of": 3}, 9),
    ],
)
def test_every_choice_of_every_prompt_counts(fields: dict[str, Any], choices: int) -> None:
    assert parse_completion_request(json.dumps({"model": "m", "prompt": "x", **fields}).encode()).choices == choices


WHOLE = [
    ("max_tokens", "3.0", 3),
    ("max_completion_tokens", "3.0", 3),
    ("n", "2.0", 2),
    ("best_of", "2e0", 2),
    ("seed", "-42.0", -42),
    ("top_k", "5.0", 5),
    ("prompt", "[5.0, 6, 7.0]", [5, 6, 7]),
    ("prompt", "[[5.0], [6.0]]", [[5], [6]]),
]


@pytest.mark.parametrize(("name", "written", "value"), WHOLE)
def test_a_whole_number_may_be_written_as_a_decimal(name: str, written: str, value: Any) -> None:
    prompt = "" if name == "prompt" else '"prompt": "x", '
    request = parse_completion_request(f'{{"model": "m", {prompt}"{name}": {written}, "top_p": 0.5}}'.encode())
    sent = json.loads(request.raw)
    passed_on = sent["max_tokens" if name == "max_completion_tokens" else name]
    assert (passed_on, "." in json.dumps(passed_on)) == (value, False)
    if name != "prompt":
        assert getattr(request, {"best_of": "choices"}.get(name, name.replace("completion_", ""))) == value


def test_several_decimals_are_whole_numbers_at_once() -> None:
    request = parse_chat_request(chat(max_tokens=3.0, n=2.0, seed=7.0, temperature=1.0))
    assert (request.max_tokens, request.n, request.seed) == (3, 2, 7)


@pytest.mark.parametrize("value", [1.5, 1e300, "3", [3.0], True])
def test_other_values_are_no_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(chat(max_tokens=value))
    assert (caught.value.param, caught.value.code) == ("max_tokens", "invalid_type")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model": None}, "missing_required_parameter"),
        ({"messages": None}, "missing_required_parameter"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter"),
        ({"messages": "x"}, "invalid_type"),
        ({"messages": []}, "empty_array"),
        ({"messages": [{"role": "root", "content": "x"}]}, "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_type"),
        ({"temperature": "hot"}, "invalid_type"),
        ({"temperature": -1}, "decimal_below_min_value"),
        ({"top_p": 1.1}, "decimal_above_max_value"),
        ({"max_tokens": 0}, "integer_below_min_value"),
        ({"max_tokens": 2**31}, "integer_above_max_value"),
        ({"n": 0}, "integer_below_min_value"),
        ({"stop": [""]}, "invalid_value"),
        ({"stop": 5}, "invalid_type"),
        ({"stream": "yes"}, "invalid_type"),
    ],
)
def test_errors_have_openais_codes(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(chat(**fields))
    assert caught.value.code == code


@pytest.mark.parametrize(("wrong", "right"), [("mesages", "messages"), ("modle", "model"), ("Messages", "messages")])
def test_a_misspelt_required_field_is_named(wrong: str, right: str) -> None:
    body = json.loads(chat())
    body[wrong] = body.pop(right)
    with pytest.raises(InvalidRequest, match=f"'{right}'. Is '{wrong}' a misspelling of it") as caught:
        parse_chat_request(json.dumps(body).encode())
    assert (caught.value.param, caught.value.code) == (right, "missing_required_parameter")


@pytest.mark.parametrize(
    ("prompt", "text_bytes", "token_ids"),
    [("a" * 300, 300, 0), (["a" * 300, "é" * 300], 900, 0), ([5] * 300, 0, 300), ([[555] * 300, [7]], 0, 301)],
)
def test_all_prompts_are_in_the_size(prompt: Any, text_bytes: int, token_ids: int) -> None:
    raw = json.dumps({"model": "m", "prompt": prompt}, ensure_ascii=False).encode()
    size = parse_completion_request(raw).prompt_size
    assert text_bytes <= size.text_bytes <= text_bytes + len('{"model": "m", "prompt": ["", ""]}')
    assert (size.token_ids, size.media) == (token_ids, 0)


DATA = "data:image/png;base64," + "A" * 10_000


@pytest.mark.parametrize(
    ("part", "media", "least_bytes"),
    [
        ({"type": "image_url", "image_url": {"url": DATA}}, 1, 0),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, 1, 0),
        ({"type": "input_audio", "input_audio": {"data": "A" * 10_000, "format": "wav"}}, 1, 0),
        ({"type": "video_url", "video_url": {"url": DATA}}, 1, 0),
        ({"type": "file", "file": {"file_data": DATA}}, 0, 10_000),
        ({"type": "thinking", "thinking": "A" * 10_000}, 0, 10_000),
        ({"type": "text", "text": DATA}, 0, 10_000),
    ],
)
def test_media_count_by_their_number_and_other_parts_by_their_bytes(
    part: dict[str, Any], media: int, least_bytes: int
) -> None:
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "x"}]}]
    size = parse_chat_request(chat(messages=messages)).prompt_size
    assert size.media == media
    assert least_bytes <= size.text_bytes <= least_bytes + 250


def test_media_part_that_is_nested_deeply_counts_with_all_its_bytes() -> None:
    part = b'{"type": "image_url", "image_url": {"url": "x"}, "more": ' + b"[" * 900 + b"]" * 900 + b"}"
    raw = b'{"model": "m", "messages": [ {"role": "user" , "content":  [%s, %s]}]}' % (part, part)
    size = parse_chat_request(raw).prompt_size
    assert size.media == 2
    assert 0 < size.text_bytes < 100


def test_text_parts_are_joined_and_other_parts_are_features() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "b"},
    ]
    request = parse_chat_request(chat(messages=[{"role": "user", "content": parts}]))
    assert request.messages[0].content == "ab"
    assert request.features == {"image_url"}


NEUTRAL = {
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "min_p": 0.0,
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "repetition_penalty": 1.0,
    "best_of": None,
    "anything_at_all": None,
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_values_and_what_has_no_effect_are_no_features(name: str) -> None:
    assert parse_chat_request(chat(**{name: NEUTRAL[name]})).features == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"5": -100}),
        ("presence_penalty", 0.5),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("min_p", 0.1),
        ("best_of", 2),
        ("anything_at_all", 0),
    ],
)
def test_values_that_ask_for_something_are_features(name: str, value: Any) -> None:
    request = parse_chat_request(chat(**{name: value}))
    assert request.features == {name}
    assert request.structured_output == (name == "response_format")


def test_what_filters_a_distribution_asks_for_nothing_under_greedy_decoding() -> None:
    assert parse_chat_request(chat(min_p=0.1, temperature=0, logprobs=True)).features == {"logprobs"}
    assert parse_chat_request(chat(min_p=0.1, temperature=0.1)).features == {"min_p"}


def test_tool_messages_need_tools() -> None:
    messages = [*HELLO, {"role": "tool", "content": "4", "tool_call_id": "x"}]
    assert parse_chat_request(chat(messages=messages)).features == {"tools"}


@pytest.mark.parametrize("nothing", [None, []])
def test_earlier_tool_calls_are_features_and_none_of_them_is_nothing(nothing: Any) -> None:
    answer = {"role": "assistant", "content": None}
    calls = [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]

    def features(**more: Any) -> Any:
        return parse_chat_request(chat(messages=[*HELLO, {**answer, **more}])).features

    assert features(tool_calls=calls) == {"tools", "tool_calls"}
    assert features(function_call={"name": "f", "arguments": "{}"}) == {"tools", "function_call"}
    assert features(tool_calls=nothing, function_call=nothing) == frozenset()


def test_keys_that_nobody_here_reads_are_features_by_their_place() -> None:
    def features(message: dict[str, Any], **more: Any) -> Any:
        return parse_chat_request(chat(messages=[*HELLO, message], **more)).features

    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    assert features({"role": "assistant", "content": "a", "prefix": True}) == {"messages[1].prefix"}
    assert features({"role": "user", "content": [part]}) == {"messages[1].content[0].cache_control"}
    assert features({"role": "user", "content": "a", "tool_call_id": "x"}) == {"messages[1].tool_call_id"}
    assert features({"role": "assistant", "content": "a", "refusal": None, "annotations": []}) == frozenset()
    options = {"include_usage": True, "include_obfuscation": False}
    assert features(HELLO[0], stream=True, stream_options=options) == frozenset()
    options["continuous_usage_stats"] = True
    assert features(HELLO[0], stream=True, stream_options=options) == {"stream_options.continuous_usage_stats"}


def test_long_names_of_parameters_are_cut_in_features() -> None:
    [name] = parse_chat_request(chat(**{"x" * 5000: 1})).features
    assert len(name) <= 80


def test_log_probabilities_of_the_completions_endpoint_are_a_number() -> None:
    raw = json.dumps({"model": "m", "prompt": "x", "logprobs": 0}).encode()
    assert parse_completion_request(raw).features == {"logprobs"}


def test_mode_is_read_from_its_header() -> None:
    assert parse_chat_request(chat(), RequestOverrides(mode="Plain")).mode is Mode.PLAIN
    with pytest.raises(InvalidRequest, match="x-slipstream-mode") as caught:
        parse_chat_request(chat(), RequestOverrides(mode="fast"))
    assert caught.value.param == "x-slipstream-mode"


def test_draft_length_and_learning_are_read_from_their_headers() -> None:
    request = parse_chat_request(chat(), RequestOverrides(draft_length="4", learn="OFF"))
    assert (request.draft_length, request.learn) == (4, False)
    plain = parse_chat_request(chat(), RequestOverrides(learn="on"))
    assert (plain.draft_length, plain.learn) == (None, True)


@pytest.mark.parametrize("value", ["0", "33", "-1", "four", "4.0", "", "٣", "9" * 5000])
def test_a_draft_length_that_no_pair_can_have_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'x-slipstream-draft-length': expected 1 to 32, got") as raised:
        parse_chat_request(chat(), RequestOverrides(draft_length=value))
    assert len(str(raised.value)) < 300


def test_learning_is_on_or_off() -> None:
    with pytest.raises(InvalidRequest, match=r"'x-slipstream-learn': expected on, off, got \"no\""):
        parse_chat_request(chat(), RequestOverrides(learn="no"))


def test_a_megabyte_in_one_word_is_one_word() -> None:
    word = "x" * 1_000_000
    assert parse_chat_request(chat(messages=[{"role": "user", "content": word}])).messages[0].content == word


@pytest.mark.parametrize("given", [{"max_completion_tokens": 50}, {"max_completion_tokens": 50, "max_tokens": None}])
def test_a_text_completions_limit_has_the_name_that_servers_know(given: dict[str, Any]) -> None:
    request = parse_completion_request(json.dumps({"model": "m", "prompt": "x", **given}).encode())
    assert request.max_tokens == 50
    assert json.loads(request.raw) == {"model": "m", "prompt": "x", "max_tokens": 50}
    chatted = parse_chat_request(chat(**given))
    assert json.loads(chatted.raw)["max_completion_tokens"] == 50


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
def test_a_text_completion_without_a_limit_has_that_of_openais_reference(given: dict[str, Any]) -> None:
    request = parse_completion_request(json.dumps({"model": "m", "prompt": "x", **given}).encode())
    assert request.max_tokens == 16
    assert json.loads(request.raw)["max_tokens"] == 16


@pytest.mark.parametrize("given", [{}, {"max_tokens": None}])
def test_a_chat_without_a_limit_has_none(given: dict[str, Any]) -> None:
    request = parse_chat_request(chat(**given))
    assert request.max_tokens is None
    assert json.loads(request.raw).get("max_tokens") is None


@pytest.mark.parametrize("limit", [b"max_tokens", b"max_completion_tokens"])
def test_a_prompt_is_scored_without_an_answer_where_the_server_does_that(limit: bytes) -> None:
    request = parse_completion_request(b'{"model": "m", "prompt": "x", "echo": true, "%s": 0}' % limit)
    assert request.max_tokens == 0
    assert request.features == {"echo", "max_tokens 0"}  # so that Slipstream's own engine refuses it


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_an_invalid_request(raw: bytes) -> None:
    for parse in (parse_chat_request, parse_completion_request):
        with contextlib.suppress(InvalidRequest):
            parse(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
INTEGERS = {"max_tokens", "max_completion_tokens", "top_k", "seed", "n", "logprobs"}
FIELDS = st.sampled_from(
    [
        *("messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature"),
        *("top_p", "top_k", "seed", "stop", "n", "logprobs", "tools", "response_format", "min_p", "user", "unheard_of"),
    ]
)


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_values_in_known_fields_are_a_request_or_an_invalid_request(fields: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", "messages": HELLO, "prompt": "x", **fields}).encode()
    with contextlib.suppress(InvalidRequest):
        assert dict(field_bytes(parse_chat_request(raw).raw)) == as_sent(raw)
    with contextlib.suppress(InvalidRequest):
        passed_on = field_bytes(parse_completion_request(raw).raw)  # `raw` may be no JSON: Python writes Infinity
        sent = as_sent(raw)
        if sent.get("max_completion_tokens", b"null") != b"null":
            sent["max_tokens"] = sent.pop("max_completion_tokens")
        if sent.get("max_tokens", b"null") == b"null":
            sent["max_tokens"] = b"16"
        assert dict(passed_on) == sent


def as_sent(raw: bytes) -> dict[str, bytes]:
    """The fields as a server gets them: integers that are written as decimals (`3.0`) are written as integers."""
    fields = dict(field_bytes(raw))
    for name in fields.keys() & INTEGERS:
        value = msgspec.json.decode(fields[name])
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            fields[name] = b"%d" % value
    return fields


def field_bytes(raw: bytes) -> list[tuple[str, bytes]]:
    """The fields of a JSON object in their order, each value as the bytes that it came as."""
    return [(name, bytes(value)) for name, value in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()]


@pytest.mark.parametrize(
    "value", ["1e400", "1.0", "-0.0", "1E+2", "9" * 400, '"\\u00e9"', '{ "a":1.50, "a": 2 }', "[ 1 , 2 ]"]
)
def test_values_that_are_not_understood_here_go_on_byte_for_byte(value: str) -> None:
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "hi"}}], "unheard_of": {value}}}'
    assert dict(field_bytes(parse_chat_request(body.encode()).raw))["unheard_of"] == value.encode()


def test_of_a_field_that_stands_twice_upstreams_get_the_one_that_was_checked() -> None:
    raw = b'{"model": "cheap", "messages": [{"role": "user", "content": "hi"}], "model": "m", "n": 5, "n": 1}'
    request = parse_chat_request(raw)
    assert (request.model, request.n) == ("m", 1)
    assert [(name, value) for name, value in field_bytes(request.raw) if name in ("model", "n")] == [
        ("model", b'"m"'),
        ("n", b"1"),
    ]
    assert request.raw.count(b'"model"') == 1


@pytest.mark.parametrize("seed", [-1, None])
def test_a_random_seed_is_no_seed(seed: int | None) -> None:
    """The gateway or the server chooses one then, by one rule for all engines."""
    request = parse_chat_request(chat(seed=seed))
    assert request.seed is None
    assert json.loads(request.raw).get("seed") is None
    assert parse_chat_request(chat(seed=-2)).seed == -2


def test_a_seed_of_the_gateway_is_exact_in_a_double() -> None:
    seeds = {random_seed() for _ in range(1000)}
    assert len(seeds) == 1000
    assert max(seeds) > 2**52
    assert {int(float(seed)) for seed in seeds} == seeds
    assert min(seeds) >= 0
