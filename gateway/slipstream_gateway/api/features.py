"""Which optional parameters a request really uses: those that a backend must honour, by their OpenAI or vLLM name.

A parameter at its neutral value asks for nothing. Some have no effect on the output and are accepted everywhere. A
name that nobody here knows counts as a feature: OpenAI-compatible servers get it, Slipstream's own engine refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from slipstream_gateway.api.body import CORE_FIELDS, WireMessage

NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",  # none are called without `tools`, which is a feature
        "prediction",  # predicted outputs: a hint for speed alone
        "priority",
        "request_id",
    }
)


def _is(*values: object) -> Callable[[object], bool]:
    """Equal to one of `values`, and for bools of the same type: 0 is not False here."""
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
}
_STRUCTURED = frozenset(
    {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)
_NULL = b"null"


def features_in_use(fields: Mapping[str, msgspec.Raw]) -> frozenset[str]:
    """The names in `fields` that ask for something beyond what every backend does."""
    extra = fields.keys() - CORE_FIELDS - NO_EFFECT
    if not extra:
        return frozenset()
    return frozenset(name for name in extra if not _is_neutral(name, fields[name]))


def is_structured(features: frozenset[str]) -> bool:
    """Whether the answer must have a form that the client gave."""
    return not _STRUCTURED.isdisjoint(features)


def message_features(message: WireMessage) -> frozenset[str]:
    """What one message needs beyond a role and text."""
    found = set()
    if message.role in ("tool", "function") or message.tool_calls or message.function_call:
        found.add("tools")
    if message.name is not None:
        found.add("messages.name")
    if isinstance(message.content, list):
        found.update(part.type for part in message.content if part.type != "text")
    return frozenset(found)


def _is_neutral(name: str, raw: msgspec.Raw) -> bool:
    if bytes(raw) == _NULL:
        return True
    neutral = _NEUTRAL.get(name)
    if neutral is None:
        return False
    try:
        return neutral(msgspec.json.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # whatever it is, it is not the neutral value
