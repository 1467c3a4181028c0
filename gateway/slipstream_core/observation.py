"""What was measured and what is expected from it: values that the learner, the decision and the stores share.

Immutable; no I/O, no clock. Lengths are tokens, times seconds, shares lie in [0, 1].
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from slipstream_core.types import Arm, Reason


class Level(StrEnum):
    """Where an estimate comes from, from the most to the least specific."""

    FINGERPRINT = "fingerprint"
    CLASS = "class"
    PAIR = "pair"
    PRIOR = "prior"


class Estimate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mean with its standard error `se`, in the same unit. `samples` is how many observations stand behind it after
    forgetting, `level` the most specific one that had any."""

    mean: float
    se: float
    samples: float
    level: Level


class Forecast(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What this deployment has learnt to expect of a request at the present load.

    `acceptance` is the probability β that a draft token is accepted where all before it were, so that a step of draft
    length γ yields E = (1 - β^(γ+1)) / (1 - β) tokens (Leviathan et al. 2023, eq. 1); None where the servers report
    no draft tokens: then E is 1 and the step's time is the time per token. A speculative step of draft length γ takes
    `step_base_s + γ · step_per_draft_token_s` seconds in a batch whose requests all use γ; `plain_tpot_s` is for a
    batch that decodes plainly: what a request costs its neighbours counts that way. `load` is requests in flight per
    replica with this one.

    `neighbours_step_s` is the time of a step beside the neighbours of this moment that speculate because it pays for
    them by itself, and go on doing so whatever this request does; None without such. `neighbours_draft_length` is
    their draft lengths' sum over `load`.
    """

    output_tokens: Estimate
    output_tokens_spread: float
    acceptance: Estimate | None
    plain_tpot_s: Estimate
    step_base_s: Estimate
    step_per_draft_token_s: Estimate
    plain_ttft_s: Estimate
    speculative_ttft_s: Estimate
    load: float
    neighbours_step_s: Estimate | None = None
    neighbours_draft_length: float = 0.0


class Subject(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What estimates of a request are kept under: made once per request, and part of its observation.

    `fingerprint` and `source` are 16 hex digits: the prompt's skeleton, and who sends it (API key id and system
    prompt). `cold_class` is the request class by the classifier alone, so that it stays when estimates move.
    `temperature` and `context` are coarse buckets. `key` is 16 hex digits of the caller's public id; empty where nobody
    was asked for a key, and from gateways of an older version.
    """

    pair: str
    fingerprint: str
    source: str
    cold_class: str
    temperature: int
    context: int
    words: tuple[int, ...] = ()
    key: str = ""


_SECONDS_PER_HOUR = 3600.0
PARITY = "parity"
"""The `status` of an observation that says how a comparison came out, and nothing of a request's end."""


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished request as estimates and evidence see it, and as replicas share it. Holds no customer text.

    `status` is an outcome's. A speculative attempt that failed, and a failed first attempt of the control, is an
    observation of its own, with the error's name, whatever became of the request on another server; so is a parity
    check, with the status `PARITY`, and `parity` says how it came out: `match` or `mismatch`. Estimates and comparisons
    take `ok` alone.

    `request_class` is the decision's. Times are seconds; `ttft_s` is None where the answer was not streamed, and
    `e2e_s` counts from the request's arrival. `rejections` counts steps that rejected a draft token; `load` is the
    mean number of requests in flight on the replica while this one ran, `batch_draft_length` their mean draft length.
    `pool` names the servers: equal for both arms where they are the same. `price_per_gpu_hour` is that pool's, None
    where unknown. `prompt_tokens` is the classifier's estimate, as in a forecast. `time_s` is the wall clock's.
    `cut`: the answer ended at its limit and not by itself. `priced_s` is what an answer is priced for: where both arms
    have the same servers, the engine's time that it took (see `Usage.engine_s`), None where they do not tell it; where
    each has its own, `e2e_s`, as if it had been alone there: in a pool that is little used it has fewer to share steps
    with, whatever speculation does. Replicas of different versions share observations: a new
    field needs a default, and one that a reader does not know is ignored.
    """

    subject: Subject
    request_class: str
    arm: Arm
    reason: Reason
    draft_length: int
    pool: str
    status: str
    prompt_tokens: int
    output_tokens: int
    drafted: int
    accepted: int
    rejections: int
    steps: int
    ttft_s: float | None
    e2e_s: float
    load: float
    batch_draft_length: float
    price_per_gpu_hour: float | None
    time_s: float
    cut: bool = False
    parity: str | None = None
    priced_s: float | None = None


def cost_of(seen: Observation) -> float | None:
    """What an answer cost, in the price's currency: its servers' price for the time that it is priced for; None
    where either is not known."""
    if seen.price_per_gpu_hour is None or seen.priced_s is None:
        return None
    return seen.price_per_gpu_hour / _SECONDS_PER_HOUR * seen.priced_s


class Draws(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Independent uniform numbers in [0, 1), each a part of its own of a keyed hash of the request
    id."""

    hold_back: float
    exploration: float
    draft_length: float
    parity: float
    rollout: float
