"""Capabilities of vLLM's drafting methods: fewer draft tokens in a step, and a step without the drafter.

vLLM passes `num_spec_tokens_to_schedule` to every drafter. On the V1 model runner, suffix decoding, n-gram on GPUs and
`extract_hidden_states` assert that it equals `num_speculative_tokens`, and drafters that propose all tokens in one pass
size their buffers for that number. For these and for unknown methods, drafts are truncated after drafting. The V2 model
runner truncates the drafts of every method itself, since vLLM 0.32.
"""

from __future__ import annotations

from typing import Any

_SHORTENED = ("draft_model", "eagle", "eagle3", "mtp", "ngram")


def may_shorten(speculative_config: Any, *, v2: bool = False) -> bool:
    """Whether the drafter can propose fewer tokens than `num_speculative_tokens`. `v2`: the runner truncates them."""
    return v2 or (speculative_config.method in _SHORTENED and not speculative_config.parallel_drafting)


def has_passes(speculative_config: Any) -> bool:
    """Whether each proposed token costs a pass of a draft model. An n-gram look-up costs next to nothing."""
    return speculative_config.method not in ("ngram", "suffix")


def may_skip(speculative_config: Any, drafter: Any) -> bool:
    """Whether a step may skip the drafter, because it keeps no state or `catch_up` can complete its cache later."""
    if speculative_config.uses_draft_model():
        return may_shorten(speculative_config) and not drafter.supports_mm_inputs
    return bool(speculative_config.method == "ngram")
