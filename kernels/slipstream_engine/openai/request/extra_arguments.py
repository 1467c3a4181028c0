"""The contract's fields of a request: those of `vllm_xargs`, with the names and messages of the plugin for vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from slipstream_engine.openai.errors import bad_field

_FIELD = "vllm_xargs"
_PREFIX = "slipstream_"
LENGTH = "slipstream_draft_length"
ADAPTIVE = "slipstream_adaptive"
PROTECT = "slipstream_protect"
CLASS = "slipstream_class"
RESUME = "slipstream_resume_token_ids"
_KEYS = (LENGTH, ADAPTIVE, PROTECT, CLASS, RESUME)
_CLASS_FORM = re.compile(r"[a-z_]+(/[a-z]+)?")
_MAX_CLASS_CHARS = 64


class ExtraArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`resume_ids`: the tokens of the answer so far, after which this one begins."""

    draft_length: int
    adaptive: bool
    protected: bool
    request_class: str
    resume_ids: tuple[int, ...]


def parse(xargs: Mapping[str, Any] | None, longest: int) -> ExtraArguments:
    """The fields in `xargs`, for an engine that drafts up to `longest` tokens. Raises `Refusal`."""
    xargs = xargs or {}
    for key in xargs:
        if key not in _KEYS:
            raise bad_field(f"{_FIELD}.{key}", f"is unknown; {', '.join(_KEYS)} are the fields of this engine.")
    length = xargs.get(LENGTH)
    return ExtraArguments(
        draft_length=longest if length is None else checked_length(length, longest, f"{_FIELD}.{LENGTH}"),
        adaptive=_flag(xargs, ADAPTIVE),
        protected=_flag(xargs, PROTECT),
        request_class=_class(xargs.get(CLASS)),
        resume_ids=_resume_ids(xargs.get(RESUME)),
    )


def checked_length(value: object, longest: int, field: str) -> int:
    """`value` as a draft length of 0..`longest` tokens. Raises `Refusal` with `field` and the value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= longest:
        reason = (
            "this server does not speculate: only 0 is possible"
            if longest == 0
            else f"an integer from 0 to {longest} (the longest draft of this server) is required"
        )
        raise bad_field(field, f"is {value!r}; {reason}.")
    return value


def _flag(xargs: Mapping[str, Any], name: str) -> bool:
    value = xargs.get(name, 0)
    if isinstance(value, bool) or value not in (0, 1):
        raise bad_field(f"{_FIELD}.{name}", f"is {value!r}; 0 or 1 is required.")
    return bool(value)


def _class(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MAX_CLASS_CHARS or _CLASS_FORM.fullmatch(value) is None:
        form = f"'task' or 'task/length' in the letters a-z (and _ in the task), at most {_MAX_CLASS_CHARS} characters,"
        raise bad_field(f"{_FIELD}.{CLASS}", f"is {value!r}; {form} is required.")
    return value


def _resume_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(each) is int and each >= 0 for each in value):
        raise bad_field(f"{_FIELD}.{RESUME}", f"is {value!r:.80}; a list of token ids is required.")
    return tuple(value)
