"""The features that each backend honours exactly: the data behind step 2 of the decision.

A feature is an optional request parameter by its OpenAI or vLLM name. Sampling (`temperature`, `top_p`, `top_k`),
`seed`, `stop` and the length limit are not features: every backend honours them on both arms.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec

from slipstream_core.manifest.dialects import DIALECTS
from slipstream_core.manifest.engines import DialectName, WireProtocol
from slipstream_core.types import RESPONSES_FEATURE


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The features that an arm honours: those in `honoured` (None: all) except those in `unsupported`."""

    honoured: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()

    def missing(self, features: Set[str]) -> tuple[str, ...]:
        """The members of `features` that the arm cannot honour, sorted."""
        if not features:
            return ()
        beyond = frozenset() if self.honoured is None else features - self.honoured
        return tuple(sorted(beyond | (features & self.unsupported)))


# With speculation on, OpenAI-compatible engines refuse these or sample from another distribution. vLLM rejects min_p,
# logit_bias and min_tokens; log-probabilities turn speculation off or are refused; several answers or beams per prompt
# run on paths that do not speculate.
_INEXACT_WITH_SPECULATION = frozenset(
    {
        "beam_width",
        "best_of",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "n",
        "prompt_logprobs",
        "top_logprobs",
        "use_beam_search",
    }
)

# vLLM refuses these for every request while speculation is configured, whatever the request's draft length: its only
# logits processor that runs beside a rejection sampler is the builtin min_tokens
# (`SamplingParams._validate_spec_decode` and `_validate_trace_replay`, vLLM 0.32).
_REFUSED_BY_SPECULATING_VLLM = frozenset({"logit_bias", "min_p", "trace_decode_token_ids"})

# Scores of a prompt's tokens end the process of a vLLM with --enable-lora: it maps their rows to adapters as if they
# were those of sampled tokens (`add_lora_logits`, vLLM 0.32; vllm-project/vllm#16668).
FATAL_WITH_LORA = frozenset({"echo", "prompt_logprobs"})

# Parameters of `/v1/responses` that refer to state on the server of an earlier response.
STATEFUL = frozenset({"conversation", "previous_response_id"})
# Features whose answers the gateway forwards without parsing their text. Such answers are neither compared nor resumed.
UNREAD = frozenset({RESPONSES_FEATURE})

PLAIN_OPENAI = Capabilities()
SPECULATING_OPENAI = Capabilities(unsupported=_INEXACT_WITH_SPECULATION)
# Slipstream's engine (`slipstream_engine.openai.request.body`). Every feature is exact at every draft length.
OWN_ENGINE = Capabilities(
    honoured=frozenset(
        {
            "echo",
            "frequency_penalty",
            "ignore_eos",
            "logit_bias",
            "logprobs",
            "messages.name",
            "min_p",
            "min_tokens",
            "n",
            "presence_penalty",
            "prompt",
            "repetition_penalty",
            "response_format",
            "return_token_ids",
            "stop_token_ids",
            "structured_outputs",
            "top_logprobs",
        }
    )
)
# One pool for both arms. With the plugin's acceptance rule, every feature of vLLM is exact at every draft length.
VLLM = Capabilities(unsupported=_REFUSED_BY_SPECULATING_VLLM)

_KNOWN = {
    (WireProtocol.TRITON, True): OWN_ENGINE,
    (WireProtocol.TRITON, False): OWN_ENGINE,
    (WireProtocol.OPENAI, True): SPECULATING_OPENAI,
    (WireProtocol.OPENAI, False): PLAIN_OPENAI,
}


def capabilities_of(
    protocol: WireProtocol,
    *,
    speculative: bool,
    dialect: DialectName = DialectName.OPENAI,
    unsupported: Iterable[str] = (),
) -> Capabilities:
    """The capabilities of servers of `protocol`, minus the features that their dialect lacks and those that the
    manifest lists as unsupported."""
    facts = DIALECTS[dialect]
    lacking = facts.unsupported | facts.inexact if speculative else facts.unsupported
    return without(_KNOWN[protocol, speculative], lacking.union(unsupported))


def without(known: Capabilities, unsupported: Iterable[str]) -> Capabilities:
    """`known` minus the features in `unsupported`."""
    return Capabilities(honoured=known.honoured, unsupported=known.unsupported.union(unsupported))
