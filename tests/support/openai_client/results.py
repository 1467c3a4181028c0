"""What a client made of its answers, in a form that can be compared: streams put together, without what differs from
run to run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import openai
from pydantic import BaseModel

# Ids, times, and what the gateway adds to the usage.
_VOLATILE = frozenset(
    {
        "accepted_prediction_tokens",
        "call_id",
        "completion_tokens_details",
        "created",
        "created_at",
        "id",
        "item_id",
        "metrics",
        "rejected_prediction_tokens",
        "sequence_number",
        "slipstream",
        "system_fingerprint",
    }
)
_LOG_PROBABILITY_ERROR = 2e-3  # a batch of another shape adds up in another order


def result_of(feature_run: Any, target: Any) -> Any:
    """What `feature_run` gives for `target`, an exception included."""
    try:
        return _plain(feature_run(target), target.model)
    except openai.APIStatusError as exc:
        return {"exception": type(exc).__name__, "status": exc.status_code, "error": exc.body}
    except openai.OpenAIError as exc:
        return {"exception": type(exc).__name__}


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two results differ, one line each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        if not math.isclose(one, other, rel_tol=1e-3, abs_tol=_LOG_PROBABILITY_ERROR):
            yield f"{where}: {one} or {other}"
    elif one != other:
        yield f"{where}: {one!r} or {other!r}"


def _plain(value: Any, model: str) -> Any:
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(), model)
    if isinstance(value, dict):
        kept = {key: _plain(item, model) for key, item in value.items() if key not in _VOLATILE}
        if kept.get("model") == model:
            kept["model"] = "(the model)"
        return kept
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, BaseModel) for item in value):
            return _stream([_plain(item, model) for item in value])
        return [_plain(item, model) for item in value]
    return value


def _stream(events: Sequence[dict[str, Any]]) -> Any:
    return _joined_events(events) if "type" in events[0] else _joined_chunks(events)


def _joined_chunks(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the chunks of a completion make, whatever text each holds."""
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.pop("choices"):
            _add(choices.setdefault(choice["index"], {}), choice)
        _add(answer, chunk)
    return {**answer, "choices": choices}


def _add(known: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        old = known.get(key)
        if value is None:
            known.setdefault(key, None)
        elif key == "tool_calls":
            calls = known[key] = old or {}
            for call in value:
                _add(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            if not isinstance(old, dict):
                known[key] = {}
            _add(known[key], value)
        elif isinstance(value, str) and isinstance(old, str) and key in ("content", "text", "arguments", "reasoning"):
            known[key] = old + value
        elif isinstance(value, list):
            known[key] = [*(old or []), *value]
        else:
            known[key] = value


def _joined_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of a response; deltas in a row are one."""
    joined: list[dict[str, Any]] = []
    for event in events:
        last = joined[-1] if joined else {}
        if event["type"].endswith(".delta") and last.get("type") == event["type"]:
            last["delta"] += event["delta"]
            last["logprobs"] = [*(last.get("logprobs") or []), *(event.get("logprobs") or [])]
        else:
            joined.append(event)
    return joined
