"""Checks of single fields that several endpoints share. Every error names the field and the value."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_core.errors import InvalidRequest

from slipstream_gateway.api.body import show

MAX_CHOICES = 8
MAX_STOP_STRINGS = 4
MAX_TOKENS = 2**31 - 1


def integer(name: str, value: int | None, low: int, high: int) -> int | None:
    """`value` if it is None or within the bounds. Raises `InvalidRequest`."""
    if value is None or low <= value <= high:
        return value
    raise InvalidRequest(f"Invalid '{name}': expected {low} to {high}, got {show(value)}.", param=name)


def choices_of(prompts: int, n: int | None, best_of: int | None) -> int:
    """The number of generated answers: one for each choice of each prompt. Raises `InvalidRequest`."""
    each = max(integer("n", n, 1, MAX_CHOICES) or 1, integer("best_of", best_of, 1, MAX_CHOICES) or 1)
    if prompts * each <= MAX_CHOICES:
        return prompts * each
    factor = "n" if each == n else "best_of"
    if each == 1:
        message = f"Invalid 'prompt': expected at most {MAX_CHOICES} prompts, got {prompts}."
    else:
        actual = f"got {prompts} prompts times {factor} {each}"
        message = f"Invalid 'prompt': expected at most {MAX_CHOICES} choices over all prompts, {actual}."
    raise InvalidRequest(message, param="prompt")


def between(name: str, value: float | None, default: float, low: float, high: float) -> float:
    """`value`, or `default` if it is None. Raises `InvalidRequest` outside the bounds."""
    if value is None:
        return default
    if low <= value <= high:
        return value
    raise InvalidRequest(f"Invalid '{name}': expected {low:g} to {high:g}, got {show(value)}.", param=name)


def top_k_of(value: int | None) -> int:
    """-1 and 0 both disable the filter, as in vLLM. Raises `InvalidRequest`."""
    return max(integer("top_k", value, -1, MAX_TOKENS) or 0, 0)


def seed_of(value: int | None) -> int | None:
    """A 64-bit seed, or None. Raises `InvalidRequest`."""
    return integer("seed", value, -(2**63), 2**63 - 1)


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings of the answer. Raises `InvalidRequest`."""
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        message = f"Invalid 'stop': at most {MAX_STOP_STRINGS} strings are allowed, got {len(strings)}."
        raise InvalidRequest(message, param="stop")
    if "" in strings:
        raise InvalidRequest("Invalid 'stop': a stop string must not be empty.", param="stop")
    return strings
