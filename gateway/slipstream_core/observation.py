"""Measurements and forecasts: values that the learner, the decision and the stores share.

Immutable; no I/O, no clock. Lengths are tokens, times seconds, shares are in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipstream_core.types import Arm, Reason


class Level(StrEnum):
    """The origin of an estimate: the API key's own answers of the class, its own answers of the pair, the median of
    other keys, or no answer at all."""

    CLASS = "class"
    PAIR = "pair"
    KEYS = "keys"
    PRIOR = "prior"


class Estimate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A mean with its standard error `se`, in the same unit. `samples` is the number of observations behind it after
    forgetting, at the level `keys` that of the other API keys; `level` is the most specific one with data."""

    mean: float
    se: float
    samples: float
    level: Level


class Forecast(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The forecast for a request at the present load, learned from this deployment.

    `acceptance` is the probability β that a draft token is accepted, given that all before it were, so that a step of
    draft length γ yields E = (1 - β^(γ+1)) / (1 - β) tokens (Leviathan et al. 2023, eq. 1). It is None if the servers
    report no draft tokens; E is then 1 and the step's time is the time per token. A speculative step of draft length γ
    takes `step_base_s + γ · step_per_draft_token_s` seconds in a batch whose requests all use γ; `plain_tpot_s` is for
    a batch that decodes plainly. So the cost of a request for its neighbours is included. `load` is the number of
    requests in flight per replica, including this one.

    `neighbours_step_s` is the time of a step in the present batch, counting only neighbours that speculate because it
    pays for them alone, and continue whatever this request does; None without such neighbours.
    `neighbours_draft_length` is the sum of their draft lengths over `load`. `timed`: an answer of these servers has
    been timed. Before that, only the ratios of the times mean something. `alarm`: the key's speculative answers of the
    class became slower, and more control has to show whether speculation is the cause; None: they are not compared yet.
    """

    output_tokens: Estimate
    acceptance: Estimate | None
    plain_tpot_s: Estimate
    step_base_s: Estimate
    step_per_draft_token_s: Estimate
    load: float
    neighbours_step_s: Estimate | None = None
    neighbours_draft_length: float = 0.0
    timed: bool = True
    alarm: bool | None = False


class Subject(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The key of a request's estimates: computed once per request, and part of its observation.

    `cold_class` is the request class by the classifier alone, so that it does not change with the estimates.
    `temperature` is a coarse bucket. `key` is 16 hex digits of the caller's public id; empty without
    access control, and from gateways of an older version. `adapter` is 16 hex digits of the LoRA adapter's name; empty
    for the pair's model itself. `fingerprint` and `source` are empty: gateways and operators of version 0.2 drop
    outcomes without them.
    """

    pair: str
    cold_class: str
    temperature: int
    key: str = ""
    adapter: str = ""
    fingerprint: str = ""
    source: str = ""


_SECONDS_PER_HOUR = 3600.0
ALSO_FAILURES = frozenset({"overloaded", "deadline_exceeded"})
"""More values of `status` that count as failures in the comparison of two revisions: one that is overloaded sooner, or
too slow for the clients' deadlines, is worse."""
PARITY = "parity"
"""The `status` of an observation with the result of a parity check, not the end of a request."""


class ParityResult(StrEnum):
    """The result of a parity check. `MISSED`: the answer was drawn for a check, but no server decoded it again in
    time."""

    MATCH = "match"
    MISMATCH = "mismatch"
    MISSED = "missed"


class Measure(StrEnum):
    """A measure of an answer's content, for the comparison of two revisions.

    `REFUSED`: the answer refuses the request. `INVALID`: the answer does not have the form that the request prescribes
    by `response_format` or `tools`. `REPEATED`: the share of the text that repeats an earlier part. `TOOLS`: the tool
    that is called first. `LETTERS`: the letters of the text, which reveal its language and garbage.
    """

    REFUSED = "refused"
    INVALID = "invalid"
    REPEATED = "repeated"
    TOOLS = "tools"
    LETTERS = "letters"


Content = Mapping[str, tuple[int, ...]]
"""The shares of an answer's parts by each `Measure` that applies, in percent; the last part's share is left out."""


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A finished request as estimates and evidence use it, and as replicas share it. It contains no customer text.

    `status` is an outcome's. A failed speculative attempt, and a failed first attempt of the control, is an observation
    of its own, with the error's name, even if the request succeeded on another server. So is a parity check, with the
    status `PARITY` and its `ParityResult` in `parity`. Estimates and comparisons use `ok` alone.

    `request_class` is the decision's. Times are seconds; `ttft_s` is None if the answer was not streamed, and `e2e_s`
    counts from the request's arrival. `rejections` counts steps that rejected a draft token; `load` is the mean number
    of requests in flight on the replica during this one, `batch_draft_length` their mean draft length. `pool`
    identifies the servers: equal for both arms if they share servers. `price_per_gpu_hour` is that pool's, None if
    unknown. `prompt_tokens` is the classifier's estimate, as in a forecast. `time_s` is wall-clock time. `cut`: the
    answer ended at its length limit. `priced_s` is the time that an answer is priced for: if both arms share servers,
    the engine's time (see `Usage.engine_s`), None if unknown; if each arm has its own servers, `e2e_s`, as if the
    request had been alone there, because in a little-used pool fewer requests share its steps, whatever speculation
    does. `revision` is the new revision with which the serving one was compared at the time, empty without such a
    comparison; `canary`: the draw sent the request to the new one. `content` is measured while two revisions are
    compared, for a part of the answers; None for others. `alarmed`: the arm was drawn with the control's share
    of an alarm (see `Forecast`). Replicas of different versions share observations: a new field needs a default, and
    readers ignore unknown fields.
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
    revision: str = ""
    canary: bool = False
    content: Content | None = None
    alarmed: bool = False


def cost_of(seen: Observation) -> float | None:
    """The cost of an answer, in the price's currency: its servers' price for the time that it is priced for; None if
    either is unknown."""
    if seen.price_per_gpu_hour is None or seen.priced_s is None:
        return None
    return seen.price_per_gpu_hour / _SECONDS_PER_HOUR * seen.priced_s


class Draws(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Independent uniform numbers in [0, 1), new for each request."""

    hold_back: float
    exploration: float
    draft_length: float
    parity: float
    rollout: float
    canary: float
