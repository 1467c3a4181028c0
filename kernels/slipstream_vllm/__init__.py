"""A draft length per request for stock vLLM.

    vllm serve MODEL --speculative-config '{…}' --scheduler-cls slipstream_vllm.Scheduler

Modules, in the order of a request:

    plugin         registers the hooks below; vLLM calls it in every process (`vllm.general_plugins`)
    compatibility  rejects unsupported versions and configurations before weights are loaded
    classes        the file of classes: draft lengths, thresholds, rules; class_file reads it again when it changes
    admission      validates `vllm_xargs` in the process that accepts the request, and applies the rules of the file
    scheduler      limits the drafts of each request to its length, once per step
    class_lengths  the present draft length of each class
    draft_allocation  which draft tokens of adaptive requests are worth their rows in a step
    drafters       capabilities of vLLM's drafters: fewer tokens, steps without the drafter
    draft_passes   skips the drafter in steps without drafts, and completes the draft model's cache afterwards
    hybrid_v2      on V2, copies of the text beside the drafter's tokens; draft_choice: which of them a request verifies
    no_drafts      runs a step without drafts at the cost of a step without speculation
    acceptance     accepts a draft token iff the server's own sampler draws the same token; acceptance_v2: on V2
    seeds          keeps seeded requests with prompts of several steps from crashing the server on CPUs
    counters       drafts, drafted and accepted tokens by request class, draft length and source; class_report sums
                   them
    engine_time    the engine time of each request
    control        engine utilities: limit, length of one request, stop_drafting
    routes         the same over HTTP, on vLLM's own port

`preflight` is a command of its own: it compares two tokenizers before a server starts.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.3.0"
__all__ = ["Scheduler", "__version__"]


def Scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """The scheduler for `--scheduler-cls slipstream_vllm.Scheduler`. vLLM resolves the name and calls it.

    Returns: a subclass of vLLM's `AsyncScheduler` for asynchronous scheduling, else of its `Scheduler`.
    Raises: `UnsupportedServerError` if the plugin cannot run.
    """
    from slipstream_vllm.scheduler import build_scheduler  # late: imports vLLM's engine

    return build_scheduler(vllm_config, *args, **kwargs)
