"""The dialects of OpenAI's API that servers of other engines speak: parameters, draft counts and readiness, as data.

Read in the engines' code. No server of these engines has run with Slipstream.

- SGLang 0.5.23, the wheel's `sglang/srt`: parameters in `entrypoints/openai/protocol.py`, whose models ignore unknown
  names; draft counts in `managers/tokenizer_manager.py` (`_calculate_spec_decoding_metrics`) and `entrypoints/openai/
  serving_chat.py`; sampling with drafts in `speculative/eagle_utils.py` (`eagle_sample`); readiness in
  `entrypoints/http_server.py`.
- TensorRT-LLM, main branch of 2026: parameters in `tensorrt_llm/serve/openai_protocol.py` at 0076e9390e1e, whose models
  refuse unknown names; draft counts in `postprocess_handlers.py` at 01bf19231d29; readiness in `openai_server.py` at
  00057725d9a6; sampling with drafts in `docs/source/features/sampling.md` at 05ce57bcac5b.
- llama.cpp's `llama-server`, main branch of 2026, `tools/server`: parameters in `server-schema.cpp`
  (`make_llama_cmpl_schema`, where those for a draft length per request are disabled), which ignores unknown names;
  draft counts in `server-task.cpp` (`result_timings::to_json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from slipstream_core.manifest.engines import DialectName


class CountsForm(StrEnum):
    """The form in which an answer reports its drafts, by the name of its field.

    `SPEC_TOKENS_DETAILS`: `sglext.spec_tokens_details` of the answer, or of an event of its own before the usage.
    `AVG_DECODED_TOKENS_PER_ITER`: a field of each choice. It is the number of generated tokens divided by the number of
    the target's passes, the prompt's included (`getAvgDecodedTokensPerIter`, `cpp/include/tensorrt_llm/batch_manager/
    llmRequest.h`). Draft tokens are not reported: each pass has a chain of `max_draft_len` of them
    (`docs/source/features/speculative-decoding.md`).
    `TIMINGS`: `timings.draft_n` and `timings.draft_n_accepted` of the answer, or of its last event. Both are left out
    if nothing was drafted. Steps are not reported: each gives its accepted tokens and one more.
    """

    SPEC_TOKENS_DETAILS = "spec_tokens_details"
    AVG_DECODED_TOKENS_PER_ITER = "avg_decoded_tokens_per_iter"
    TIMINGS = "timings"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of one engine's OpenAI-compatible server.

    `unsupported`: parameters that it ignores silently or refuses. `inexact`: parameters that change the answer while it
    speculates, or that it refuses then. `refused_without_effect`: parameters without effect on an answer, which it
    refuses nevertheless. `counts`: the form of its draft counts, None if it has none; `counts_field`: the parameter
    that requests them, if they need one. `scores`: it scores the tokens of a prompt, as vLLM's `prompt_logprobs` does.
    `ids_in_traffic`: `return_token_ids` works for every request, as with vLLM. `caches_prefixes`: the engine caches the
    beginnings of prompts unless it is told not to. `ready_path`: the path that has status 200 exactly if the server is
    ready.
    """

    unsupported: frozenset[str] = frozenset()
    inexact: frozenset[str] = frozenset()
    refused_without_effect: frozenset[str] = frozenset()
    counts: CountsForm | None = None
    counts_field: str | None = None
    scores: bool = True
    ids_in_traffic: bool = True
    caches_prefixes: bool = False
    ready_path: str = "v1/models"


_PENALTIES = frozenset({"frequency_penalty", "presence_penalty", "repetition_penalty"})
# Parameters of OpenAI's API or of vLLM that none of the engines has.
_OF_OTHERS = frozenset(
    {
        "allowed_token_ids",
        "audio",
        "bad_words",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "include_reasoning",
        "logprob_token_ids",
        "modalities",
        "prompt_embeds",
        "prompt_logprobs",
        "repetition_detection",
        "return_token_offsets",
        "return_tokens_as_token_ids",
        "structured_outputs",
        "suffix",
        "truncation_side",
        "verbosity",
        "vllm_xargs",
        "web_search_options",
    }
)

DIALECTS: Mapping[DialectName, Dialect] = MappingProxyType(
    {
        DialectName.OPENAI: Dialect(),
        DialectName.SGLANG: Dialect(
            unsupported=_OF_OTHERS
            | {
                "add_generation_prompt",
                "add_special_tokens",
                "best_of",
                "chat_template",
                "documents",
                "include_stop_str_in_output",
                "length_penalty",
                "spaces_between_special_tokens",
                "thinking_token_budget",
                "truncate_prompt_tokens",
                "use_beam_search",
            },
            inexact=_PENALTIES,  # "a relaxed version": all rows of a step get the penalties of the tokens before it
            counts=CountsForm.SPEC_TOKENS_DETAILS,
            counts_field="return_spec_tokens_details",
            scores=False,  # only by an API of its own, `/generate`, and without ranks
            ids_in_traffic=False,  # refused for streamed chats
            caches_prefixes=True,  # `disable_radix_cache` is False
            ready_path="ready",
        ),
        DialectName.TRTLLM: Dialect(
            unsupported=_OF_OTHERS | {"continue_final_message", "return_token_ids"},
            inexact=_PENALTIES,  # refused unless the server has `enable_penalty`
            refused_without_effect=frozenset(
                {
                    "metadata",
                    "prediction",
                    "prompt_cache_key",
                    "prompt_cache_retention",
                    "request_id",
                    "safety_identifier",
                    "service_tier",
                    "store",
                }
            ),
            counts=CountsForm.AVG_DECODED_TOKENS_PER_ITER,
            scores=False,
            ids_in_traffic=False,
            caches_prefixes=True,  # `KvCacheConfig.enable_block_reuse` is True
            ready_path="health",
        ),
        DialectName.LLAMACPP: Dialect(
            unsupported=_OF_OTHERS
            | {
                "add_special_tokens",
                "best_of",
                "chat_template",
                "documents",
                "echo",
                "include_stop_str_in_output",
                "length_penalty",
                "min_tokens",
                "repetition_penalty",  # its name is `repeat_penalty`
                "return_token_ids",
                "skip_special_tokens",
                "spaces_between_special_tokens",
                "stop_token_ids",
                "thinking_token_budget",
                "truncate_prompt_tokens",
                "use_beam_search",
            },
            inexact=_PENALTIES - {"repetition_penalty"},  # not verified with a server
            counts=CountsForm.TIMINGS,
            scores=False,
            ids_in_traffic=False,
            caches_prefixes=True,  # `cache_prompt` is true
            ready_path="health",
        ),
    }
)
