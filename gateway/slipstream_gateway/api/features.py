"""The optional parameters that a request really uses and a backend must honour, by their OpenAI or vLLM name.

A parameter at its neutral value is not used. Some parameters do not affect the output and are accepted everywhere. An
unknown name counts as a feature: OpenAI-compatible servers receive it, Slipstream's own engine refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import msgspec
from slipstream_core.errors import InvalidRequest, RequestCode, shorten

from slipstream_gateway.api.body import CORE_FIELDS, WireMessage, show

MAX_CHOICES = 65_536
"""Of one prompt. Four times what vLLM generates; the gateway's counts of tokens stay exact."""
MAX_TOKENS = 2**31 - 1
RANDOM_SEED = -1


def integer(name: str, value: int | None, low: int, high: int = MAX_TOKENS) -> int | None:
    """`value` if it is None or within the bounds. Raises `InvalidRequest`."""
    if value is None or low <= value <= high:
        return value
    code = RequestCode.INTEGER_TOO_SMALL if value < low else RequestCode.INTEGER_TOO_LARGE
    raise InvalidRequest(f"Invalid '{name}': expected {low} to {high}, got {show(value)}.", param=name, code=code)


def choices_of(prompts: int, n: int | None, best_of: int | None) -> int:
    """The number of generated answers: one for each choice of each prompt. Raises `InvalidRequest`."""
    return prompts * max(integer("n", n, 1, MAX_CHOICES) or 1, integer("best_of", best_of, 1, MAX_CHOICES) or 1)


def temperature_of(value: float | None) -> float:
    """The maximum is that of the pair or of its servers. Raises `InvalidRequest`."""
    if value is None:
        return 1.0
    if value >= 0.0:
        return value
    message = f"Invalid 'temperature': expected 0 or more, got {show(value)}."
    raise InvalidRequest(message, param="temperature", code=RequestCode.DECIMAL_TOO_SMALL)


def top_p_of(value: float | None) -> float:
    """Raises `InvalidRequest`."""
    if value is None:
        return 1.0
    if 0.0 <= value <= 1.0:
        return value
    code = RequestCode.DECIMAL_TOO_SMALL if value < 0.0 else RequestCode.DECIMAL_TOO_LARGE
    raise InvalidRequest(f"Invalid 'top_p': expected 0 to 1, got {show(value)}.", param="top_p", code=code)


def top_k_of(value: int | None) -> int:
    """-1 and 0 both disable the filter, as in vLLM. Raises `InvalidRequest`."""
    return max(integer("top_k", value, -1) or 0, 0)


def seed_of(value: int | None) -> int | None:
    """A 64-bit seed, or None: -1 is a random seed, as in vLLM. Raises `InvalidRequest`."""
    return None if value == RANDOM_SEED else integer("seed", value, -(2**63), 2**63 - 1)


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of the answer. Raises `InvalidRequest`."""
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in strings:
        raise InvalidRequest("Invalid 'stop': a stop string must not be empty.", param="stop")
    return strings


NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",  # without `tools`, which is a feature, no tools are called
        "prediction",  # predicted outputs: a hint that affects speed only
        "priority",
        "request_id",
    }
)


def _is(*values: object) -> Callable[[object], bool]:
    """Equal to one of `values`, with bools equal to bools only: 0 is not False here."""
    return lambda value: any(
        value == neutral and isinstance(value, bool) is isinstance(neutral, bool) for neutral in values
    )


_NEUTRAL: Mapping[str, Callable[[object], bool]] = {
    "logprobs": _is(False),
    "top_logprobs": _is(0),
    "logit_bias": _is({}),
    "presence_penalty": _is(0),
    "frequency_penalty": _is(0),
    "repetition_penalty": _is(1),
    "length_penalty": _is(1),
    "min_p": _is(0),
    "min_tokens": _is(0),
    "best_of": _is(1),
    "use_beam_search": _is(False),
    "echo": _is(False),
    "suffix": _is(""),
    "tools": _is([]),
    "functions": _is([]),
    "tool_choice": _is("none", "auto"),
    "function_call": _is("none", "auto"),
    "response_format": _is({"type": "text"}),
    "modalities": _is(["text"]),
    "stop_token_ids": _is([]),
    "bad_words": _is([]),
    "ignore_eos": _is(False),
    "include_stop_str_in_output": _is(False),
    "skip_special_tokens": _is(True),
    "spaces_between_special_tokens": _is(True),
    "add_generation_prompt": _is(True),
    "continue_final_message": _is(False),
    "add_special_tokens": _is(False),
    "chat_template_kwargs": _is({}),
    "truncation": _is("disabled"),
}
_STRUCTURED = frozenset(
    {
        "response_format",
        "text.format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
)
FOR_SAMPLING = frozenset({"min_p"})
"""Parameters without effect on greedy decoding."""
_NULL = b"null"
_NOTHING = frozenset({_NULL, b"[]"})
_MESSAGE_KEYS = frozenset({"role", "content", "name", "tool_calls", "function_call"})
_TOOL_ROLES = ("tool", "function")
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def features_in_use(fields: Mapping[str, msgspec.Raw], core: Set[str] = CORE_FIELDS) -> frozenset[str]:
    """The names in `fields` that require more than every backend offers. The endpoint itself reads `core`."""
    extra = fields.keys() - core - NO_EFFECT
    if not extra:
        return frozenset()
    return frozenset(shorten(name) for name in extra if not _is_neutral(name, fields[name]))


def stream_option_features(raw: msgspec.Raw) -> frozenset[str]:
    """The keys of `stream_options` other than the usage, as `stream_options.<key>`."""
    if bytes(raw) == _NULL:
        return frozenset()
    return frozenset(
        shorten(f"stream_options.{key}")
        for key, value in _decode_object(raw).items()
        if key != "include_usage" and bytes(value) not in (_NULL, b"false")
    )


def is_structured(features: frozenset[str]) -> bool:
    """Whether the client prescribes a format for the answer."""
    return not _STRUCTURED.isdisjoint(features)


def message_features(messages: Sequence[WireMessage], raw: msgspec.Raw) -> frozenset[str]:
    """The features of messages beyond roles and text. `raw` is their JSON, for the keys that are not decoded."""
    found: set[str] = set()
    for index, (message, fields) in enumerate(zip(messages, _decode_objects(raw), strict=True)):
        if message.role in _TOOL_ROLES:
            found.add("tools")
        if len(fields) == 2 and isinstance(message.content, str):
            continue  # role and text only: the fast path for nearly every message
        if message.name is not None:
            found.add("messages.name")
        found.update(_calls(fields))
        found.update(_unknown_keys(message, fields, index))
        if isinstance(message.content, list):
            found.update(_part_features(fields["content"], f"messages[{index}].content"))
    return frozenset(found)


def _calls(fields: Mapping[str, msgspec.Raw]) -> set[str]:
    """Tool calls of an earlier turn: a chat template without tools cannot render them."""
    calls = {name for name in ("tool_calls", "function_call") if name in fields and not _is_nothing(fields[name])}
    return calls | {"tools"} if calls else calls


def _unknown_keys(message: WireMessage, fields: Mapping[str, msgspec.Raw], index: int) -> Iterator[str]:
    for key in fields.keys() - _MESSAGE_KEYS:
        known = key == "tool_call_id" and message.role in _TOOL_ROLES
        if not known and not _is_nothing(fields[key]):
            yield shorten(f"messages[{index}].{key}")


def _part_features(raw: msgspec.Raw, where: str) -> Iterator[str]:
    """The kinds of the parts that are not text, and the undecoded keys of text parts."""
    for position, fields in enumerate(_decode_objects(raw)):
        kind = msgspec.json.decode(fields["type"], type=str)
        if kind != "text":
            yield shorten(kind)
            continue
        for key in fields.keys() - {"type", "text"}:
            if not _is_nothing(fields[key]):
                yield shorten(f"{where}[{position}].{key}")


def _is_nothing(raw: msgspec.Raw) -> bool:
    return bytes(raw) in _NOTHING


def _is_neutral(name: str, raw: msgspec.Raw) -> bool:
    if bytes(raw) == _NULL:
        return True
    neutral = _NEUTRAL.get(name)
    if neutral is None:
        return False
    try:
        return neutral(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # any other value is not the neutral one
