"""The names of request parameters, for errors about a name that no server of a pair honours: a known one is not
supported, and an unknown one may be a misspelling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_OPENAI = (
    "access_programs audio background best_of context_management conversation echo frequency_penalty "
    "function_call functions image include input instructions logit_bias logprobs max_completion_tokens "
    "max_output_tokens max_tokens max_tool_calls messages metadata modalities model moderation n "
    "parallel_tool_calls prediction presence_penalty previous_response_id prompt prompt_cache_key "
    "prompt_cache_options prompt_cache_retention reasoning reasoning_effort response_format safety_identifier "
    "seed service_tier stop store stream stream_options suffix temperature text tool_choice tools top_logprobs "
    "top_p truncation user verbosity web_search_options"
)
_VLLM = (
    "add_generation_prompt add_special_tokens allowed_token_ids bad_words beam_width cache_salt chat_template "
    "chat_template_kwargs continue_final_message documents ec_transfer_params enable_response_messages "
    "guided_choice guided_grammar guided_json guided_regex ignore_eos include_reasoning "
    "include_stop_str_in_output kv_transfer_params length_penalty logprob_token_ids media_io_kwargs min_p "
    "min_tokens mm_payload mm_processor_kwargs previous_input_messages priority prompt_embeds prompt_logprobs "
    "repetition_detection repetition_penalty request_id return_assistant_tokens_mask return_mm_kwargs "
    "return_prompt_text return_token_ids return_token_offsets return_tokens_as_token_ids return_weight_versions "
    "routed_experts_prompt_start session_id skip_special_tokens "
    "spaces_between_special_tokens stop_token_ids stream_interval structured_outputs thinking_token_budget top_k "
    "trace_decode_token_ids truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking"
)
KNOWN_PARAMETERS = frozenset(f"{_OPENAI} {_VLLM}".split())
"""The top-level fields of OpenAI's three generation endpoints and of vLLM's."""
STREAM_OPTIONS = frozenset({"include_usage", "include_obfuscation", "continuous_usage_stats"})
_ALIKE = 0.75
_LONGEST = 64


def suggestion(name: str, known: Iterable[str] = KNOWN_PARAMETERS) -> str:
    """A question for the client of a misspelt `name`; empty if no known name is similar."""
    if len(name) > _LONGEST:
        return ""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=_ALIKE)
    return f"Did you mean '{close[0]}'?" if close else ""
