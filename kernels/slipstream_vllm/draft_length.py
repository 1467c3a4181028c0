"""The fields of a request: `vllm_xargs.slipstream_draft_length` and `vllm_xargs.slipstream_class`, both optional.

vLLM passes `vllm_xargs` on as `SamplingParams.extra_args`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slipstream_vllm.errors import BadRequest

LENGTH_KEY = "slipstream_draft_length"
CLASS_KEY = "slipstream_class"
MAX_CLASS_CHARS = 64
_PREFIX = "slipstream_"
_CLASS = re.compile(r"[a-z_]+(/[a-z]+)?")


def check_keys(extra_args: Mapping[str, Any]) -> None:
    """Raises: `BadRequest` for an unknown key with the plugin's prefix, such as a misspelt one."""
    for key in extra_args:
        if key.startswith(_PREFIX) and key not in (LENGTH_KEY, CLASS_KEY):
            raise BadRequest(
                f"vllm_xargs.{key} is unknown; {LENGTH_KEY} and {CLASS_KEY} are the fields of slipstream-vllm.",
                parameter=f"vllm_xargs.{key}",
            )


def requested_length(extra_args: Mapping[str, Any] | None, most: int) -> int:
    """The request's draft length, 0..`most`; `most` if the request sets none.

    Raises: `BadRequest` for an invalid value.
    """
    value = (extra_args or {}).get(LENGTH_KEY)
    if value is None:
        return most
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


def requested_class(extra_args: Mapping[str, Any] | None) -> str | None:
    """The request's class label, such as `summarization/long`, or None.

    Raises: `BadRequest` for a label that is not `task` or `task/length`, or is longer than 64 characters.
    """
    value = (extra_args or {}).get(CLASS_KEY)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > MAX_CLASS_CHARS or not _CLASS.fullmatch(value):
        raise BadRequest(
            f"vllm_xargs.{CLASS_KEY} is {value!r}; 'task' or 'task/length' in the letters a-z (and _ in the task), "
            f"at most {MAX_CLASS_CHARS} characters, is required.",
            parameter=f"vllm_xargs.{CLASS_KEY}",
        )
    return value
