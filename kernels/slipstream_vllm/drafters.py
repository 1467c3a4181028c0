"""What the drafting methods of vLLM 0.32 permit: fewer draft tokens in a step, and a step without the drafter.

vLLM hands `num_spec_tokens_to_schedule` to every drafter. Medusa, suffix decoding, n-gram on GPUs and
`extract_hidden_states` assert that it is `num_speculative_tokens`; drafters that propose all tokens in one pass lay out
their buffers for that number. There, and for methods that are not known here, drafts are cut, but drafting is not
shortened.
"""

from __future__ import annotations

from typing import Any

_SHORTENED = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
_WITHOUT_STATE = ("medusa", "ngram")


def may_shorten(speculative_config: Any) -> bool:
    """Whether the drafter can be asked for fewer tokens than `num_speculative_tokens`."""
    return speculative_config.method in _SHORTENED and not speculative_config.parallel_drafting


def may_skip(speculative_config: Any, drafter: Any) -> bool:
    """Whether a step may leave the drafter out: it keeps no state, or `catch_up` can fill its cache later."""
    if speculative_config.uses_draft_model():
        return may_shorten(speculative_config) and not drafter.supports_mm_inputs
    return speculative_config.method in _WITHOUT_STATE
