"""What a backend can do exactly: the table behind step 2 of the decision, as data.

A feature is an optional request parameter by its OpenAI or vLLM name. Sampling (`temperature`, `top_p`, `top_k`),
`seed`, `stop` and the length limit are no features: every backend honours them on both arms.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from slipstream_gateway.manifest.objects import Protocol


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Which features an arm honours: those in `honoured` (None: all) without those in `unsupported`."""

    honoured: frozenset[str] | None = None
    unsupported: frozenset[str] = frozenset()

    def missing(self, features: Set[str]) -> tuple[str, ...]:
        """Those of `features` that the arm cannot honour, sorted."""
        if not features:
            return ()
        beyond = frozenset() if self.honoured is None else features - self.honoured
        return tuple(sorted(beyond | (features & self.unsupported)))


# With speculation on, OpenAI-compatible engines refuse these or answer from another distribution:
# vLLM rejects min_p, logit_bias and min_tokens, log-probabilities turn speculation off or are refused, and
# several answers or beams per prompt run on paths that do not speculate.
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

# Slipstream's Triton model takes one answer per request; the gateway asks several times for `n`.
TABLE = {
    (Protocol.TRITON, True): Capabilities(honoured=frozenset()),
    (Protocol.TRITON, False): Capabilities(honoured=frozenset({"n"})),
    (Protocol.OPENAI, True): Capabilities(unsupported=_INEXACT_WITH_SPECULATION),
    (Protocol.OPENAI, False): Capabilities(),
}


def capabilities_of(protocol: Protocol, *, speculative: bool, unsupported: tuple[str, ...] = ()) -> Capabilities:
    """The table's entry, less what the manifest says that these servers cannot do."""
    known = TABLE[protocol, speculative]
    return Capabilities(honoured=known.honoured, unsupported=known.unsupported.union(unsupported))
