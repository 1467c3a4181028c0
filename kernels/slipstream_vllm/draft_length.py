"""The fields of a request, all optional: `slipstream_draft_length`, `slipstream_adaptive`, `slipstream_protect` and
`slipstream_class`.

They are fields of `vllm_xargs`, which vLLM passes on as `SamplingParams.extra_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream_vllm.classes import class_problem, is_class
from slipstream_vllm.errors import BadRequest
from slipstream_vllm.resumption import RESUME_KEY

LENGTH_KEY = "slipstream_draft_length"
ADAPTIVE_KEY = "slipstream_adaptive"
PROTECT_KEY = "slipstream_protect"
CLASS_KEY = "slipstream_class"
_KEYS = (LENGTH_KEY, ADAPTIVE_KEY, PROTECT_KEY, CLASS_KEY, RESUME_KEY)
_PREFIX = "slipstream_"


def check_keys(extra_args: Mapping[str, Any]) -> None:
    """Raises: `BadRequest` for an unknown key with the plugin's prefix, such as a misspelt one."""
    for key in extra_args:
        if key.startswith(_PREFIX) and key not in _KEYS:
            raise BadRequest(
                f"vllm_xargs.{key} is unknown; {', '.join(_KEYS)} are the fields of slipstream-vllm.",
                parameter=f"vllm_xargs.{key}",
            )


def requested_length(extra_args: Mapping[str, Any] | None, most: int) -> int | None:
    """The request's draft length, 0..`most`, or None.

    Raises: `BadRequest` for an invalid value.
    """
    value = (extra_args or {}).get(LENGTH_KEY)
    if value is None:
        return None
    return checked_length(value, most, f"vllm_xargs.{LENGTH_KEY}")


def checked_length(value: object, most: int, field: str) -> int:
    """`value` as a draft length of 0..`most` tokens. Raises: `BadRequest` with `field` and the value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        reason = (
            "this server does not speculate: only 0 is possible"
            if most == 0
            else f"an integer from 0 to {most} (num_speculative_tokens of this server) is required"
        )
        raise BadRequest(f"{field} is {value!r}; {reason}.", parameter=field)
    return value


def requested_adaptive(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether the draft length is a maximum, and each step verifies as many draft tokens as pay.

    Raises: `BadRequest`.
    """
    return _flag(extra_args, ADAPTIVE_KEY)


def requested_protection(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether drafts of adaptive requests must not delay the tokens of this one.

    Raises: `BadRequest`.
    """
    return _flag(extra_args, PROTECT_KEY)


def _flag(extra_args: Mapping[str, Any] | None, key: str) -> bool:
    """0 or 1, because `vllm_xargs` allows no booleans. Raises: `BadRequest` for another value."""
    value = (extra_args or {}).get(key, 0)
    if isinstance(value, bool) or value not in (0, 1):
        raise BadRequest(f"vllm_xargs.{key} is {value!r}; 0 or 1 is required.", parameter=f"vllm_xargs.{key}")
    return bool(value)


def requested_class(extra_args: Mapping[str, Any] | None) -> str | None:
    """The request's class label, such as `summarization/long`, or None.

    Raises: `BadRequest` for a label that is not `task` or `task/length`, or is longer than 64 characters.
    """
    value = (extra_args or {}).get(CLASS_KEY)
    if value is None:
        return None
    if not is_class(value):
        name = f"vllm_xargs.{CLASS_KEY}"
        raise BadRequest(class_problem(name, value), parameter=name)
    return value
