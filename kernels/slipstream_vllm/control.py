"""Engine utilities, reached through `engine_core.call_utility_async(name, …)`. They run between two steps.

slipstream_limit(limit | None | "get")        an upper bound for every request; returns the bound in force
slipstream_set_length(request_id, length)     one request, by its client's id; returns the number of changed sequences
slipstream_stop_drafting()                    length 0 for all running and waiting requests; returns their number
slipstream_classes()                          counts and present draft length of each class
"""

from __future__ import annotations

from typing import Any, Literal


def install() -> None:
    """Add the utilities to vLLM's `EngineCore`; the assignment is idempotent."""
    from vllm.v1.engine.core import EngineCore

    EngineCore.slipstream_limit = _limit
    EngineCore.slipstream_set_length = _set_length
    EngineCore.slipstream_stop_drafting = _stop_drafting
    EngineCore.slipstream_classes = _classes


def _limit(core: Any, limit: int | Literal["get"] | None) -> int | None:
    if limit != "get":
        core.scheduler.slipstream_set_limit(limit)
    bound: int | None = core.scheduler.slipstream_limit
    return bound


def _set_length(core: Any, request_id: str, length: int) -> int:
    changed: int = core.scheduler.slipstream_set_length(request_id, length)
    return changed


def _stop_drafting(core: Any) -> int:
    stopped: int = core.scheduler.slipstream_stop_drafting()
    return stopped


def _classes(core: Any) -> dict[str, dict[str, Any]]:
    classes: dict[str, dict[str, Any]] = core.scheduler.slipstream_classes()
    return classes
