"""The time of an engine's step: a table over rows, requests and context."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """All times are milliseconds.

    A step of r rows for n requests with c tokens of context in all takes
    `fixed + (weights³ + (row·r)³)^⅓ + request·n + context·c`: reading the weights and computing the rows overlap. A
    pass of the draft takes `draft_share` of a target's step for the requests that draft, and its reading of a prompt
    `draft_prefill` per token. `prefill_budget`: prompt tokens that a step reads, for each output token of the
    running requests. `separate_prefill`: the engine reads prompts in passes of their own.
    """

    name: str
    fixed: float
    weights: float
    row: float
    request: float
    context: float
    draft_share: float
    draft_fixed: float = 0.0
    draft_row: float = 0.0
    draft_prefill: float
    prefill_row: float = 0.0
    prefill_fixed: float = 0.0
    prefill_budget: float = 2048.0
    separate_prefill: bool = False

    def step_ms(self, rows: int, requests: int, context: int) -> float:
        arithmetic = self.row * rows
        overlapped = (self.weights**3 + arithmetic**3) ** (1 / 3) if self.weights else arithmetic
        return self.fixed + overlapped + self.request * requests + self.context * context

    def drafting_ms(self, passes: int, requests: int) -> float:
        """`passes` of the draft for `requests`."""
        if not passes:
            return 0.0
        one = self.draft_fixed + self.draft_row * requests
        return passes * (one + self.draft_share * self.step_ms(requests, requests, 0))

    def prefill_ms(self, tokens: int) -> float:
        """A pass of its own over `tokens` of a prompt."""
        return self.prefill_fixed + self.prefill_row * tokens


H100_8B = Costs(
    name="8B on H100",
    fixed=1.5,
    weights=6.0,
    row=0.032,
    request=0.0,
    context=5.6e-5,
    draft_share=0.225,
    draft_prefill=0.0015,
)
"""From published figures. 133 tokens/s at 1 in flight (vLLM #16937): 7.5 ms, of which 6.0 read 16 GB at 80 % of
3.35 TB/s. A row is 16 GFLOP at half of 989 TFLOP/s, a token of context 131 kB at 70 % of the bandwidth. With the
draft's share, an acceptance of 0.7 gives 1.51 × for 2 draft tokens as published, and 1.22 × for 7 (1.27 ×; EAGLE,
#16937)."""

H100_70B = Costs(
    name="70B on 4 H100",
    fixed=2.0,
    weights=13.0,
    row=0.071,
    request=0.0,
    context=3.5e-5,
    draft_share=0.125,
    draft_prefill=0.0015,
)
"""As above for 140 GB on four GPUs; the draft's share is SpecDecode-Bench's for 70B (12.5 %)."""

PUBLISHED = {"8b": H100_8B, "70b": H100_70B}


def costs_of(name: str) -> Costs:
    """A published table by its name, or one in a file."""
    return PUBLISHED[name] if name in PUBLISHED else msgspec.json.decode(Path(name).read_bytes(), type=Costs)
