"""A draft length per request for stock vLLM.

    vllm serve MODEL --speculative-config '{…}' --scheduler-cls slipstream_vllm.Scheduler

Rooms, in the order of a request:

    plugin         registers the hooks below; vLLM calls it in every process (`vllm.general_plugins`)
    compatibility  refuses versions and configurations that are not supported, before weights are loaded
    admission      validates `vllm_xargs` in the process that accepts the request
    scheduler      trims the drafts of each request to its length, once per step
    drafters       which drafters can be asked for fewer tokens, or left out of a step
    drafting       skips the drafter where no request drafts, and refills the draft model's cache where it was skipped
    no_drafts      runs a step without drafts at the cost of a step without speculation
    acceptance     accepts a draft token iff the server's own sampler draws the same token
    seeds          lets seeded requests survive a prompt of several steps on CPUs
    counters       drafts, drafted and accepted tokens by request class and draft length
    control        engine utilities: limit, length of one request, stop_drafting
    routes         the same over HTTP, on vLLM's own port
"""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"
__all__ = ["Scheduler", "__version__"]


def Scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """The scheduler for `--scheduler-cls slipstream_vllm.Scheduler`: vLLM resolves the name and calls it.

    Returns: a subclass of vLLM's `AsyncScheduler` where scheduling is asynchronous, else of its `Scheduler`.
    Raises: `UnsupportedServerError` where the plugin cannot run.
    """
    from slipstream_vllm.scheduler import build_scheduler  # imports vLLM's engine: only the engine's process needs it

    return build_scheduler(vllm_config, *args, **kwargs)
