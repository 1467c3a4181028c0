"""What speculation emits has the target's distribution: chi-squared goodness of fit, on one and on two tokens.

Each case generates from many seeds at once with a small target whose next-token distribution depends on the token
before, drafted by something that disagrees with it. The same measurement must expose verifiers with the faults that
serving engines have had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from slipstream_kernels import Purpose, SamplingBatch, Verification, filtered_probs, sample, uniform, verify
from slipstream_kernels.sampling import draw
from torch import Tensor

REQUESTS = 10_000
VOCABULARY = 6
DRAFTED = 2
FITS, DOES_NOT_FIT = 1e-3, 1e-9

Verifier = Callable[..., Verification]


@dataclass(frozen=True, kw_only=True)
class Case:
    """How requests sample and how their drafts come about: `draft` is `sampled` from the draft's distribution,
    `greedy` (its argmax), `unflagged` (its argmax, passed off as sampled) or `mixed` (half of each, flagged).
    `draft_temperature` other than None lets the draft sample at another temperature than it reports."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    draft: str = "sampled"
    dtype: torch.dtype = torch.float32
    draft_temperature: float | None = None
    hide_draft_probs: bool = False

    def sampling(self, temperature: float | None = None) -> SamplingBatch:
        return _sampling(self.temperature if temperature is None else temperature, self.top_p, self.top_k)


@cache
def _sampling(temperature: float, top_p: float, top_k: int) -> SamplingBatch:
    return SamplingBatch.of(*([value] * REQUESTS for value in (temperature, top_p, top_k)), range(REQUESTS))


def tables(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits of target and draft after each token, [V + 1, V]; the last row is for the start."""
    generator = torch.Generator().manual_seed(11)
    target = 1.2 * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator)
    draft = 0.5 * target + 0.9 * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator)
    return target.to(dtype), draft.to(dtype)


def propose(case: Case, table: Tensor, context: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Drafted ids [B, K], the distributions to report for them [B, K, V], and who drafted greedily, bool [B]."""
    even = torch.arange(REQUESTS) % 2 == 0
    greedy = {"sampled": even & False, "mixed": even}.get(case.draft, even | True)
    ids, probs = [], []
    for step in range(DRAFTED):
        logits, positions = table[context], torch.full((REQUESTS,), position + step)
        chosen, _ = sample(logits, case.sampling(case.draft_temperature), positions, Purpose.DRAFT)
        context = torch.where(greedy, logits.float().argmax(-1), chosen)
        ids.append(context)
        probs.append(filtered_probs(logits, case.sampling()))
    return torch.stack(ids, 1), torch.stack(probs, 1), greedy


def step(case: Case, verifier: Verifier, context: Tensor, position: int) -> Verification:
    """One speculative step of every request, with draft lengths 0..K side by side."""
    target, draft = tables(case.dtype)
    ids, probs, greedy = propose(case, draft, context, position)
    lengths = (torch.arange(REQUESTS) * 7 + 3) % (DRAFTED + 1)
    contexts = torch.cat((context[:, None], ids), 1)
    owned = torch.arange(DRAFTED + 1) <= lengths[:, None]
    one_hot_only = case.draft == "greedy" or case.hide_draft_probs
    return verifier(
        target[contexts[owned]],
        ids.masked_fill(~owned[:, 1:], -1),
        lengths,
        None if one_hot_only else probs,
        case.sampling(),
        torch.full((REQUESTS,), position),
        draft_onehot=greedy if case.draft == "mixed" else None,
    )


def first_two_tokens(case: Case, verifier: Verifier) -> Tensor:
    """int64 [B, 2], in as many steps as that takes."""
    result = step(case, verifier, torch.full((REQUESTS,), VOCABULARY), position=0)
    first, second = result.token_ids[:, 0], result.token_ids[:, 1]
    following = step(case, verifier, first, position=1).token_ids[:, 0]
    return torch.stack((first, torch.where(result.lengths > 1, second, following)), 1)


def goodness_of_fit(case: Case, verifier: Verifier) -> tuple[float, float]:
    """p-values of the first token and of the first two together. 0 if a token came that cannot come."""
    target, _ = tables(case.dtype)
    expected = filtered_probs(target, case.sampling().rows(torch.arange(VOCABULARY + 1))).double()
    tokens = first_two_tokens(case, verifier)
    joint = expected[-1][:, None] * expected[:-1]
    pairs = torch.bincount(tokens[:, 0] * VOCABULARY + tokens[:, 1], minlength=VOCABULARY**2)
    singles = torch.bincount(tokens[:, 0], minlength=VOCABULARY)
    return p_value(singles, expected[-1]), p_value(pairs, joint.flatten())


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    observed, expected = counts.numpy(), (probabilities * REQUESTS).numpy()
    if observed[expected == 0].any():
        return 0.0
    # Cells too small for the chi-squared approximation are counted together.
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    used = expected > 0
    return float(chisquare(observed[used], expected[used] * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("draft", ["sampled", "greedy", "mixed"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.8, 0), (1.5, 1.0, 3), (1.0, 0.85, 5)]
)
def test_emitted_tokens_have_the_targets_distribution(temperature, top_p, top_k, draft):
    case = Case(temperature=temperature, top_p=top_p, top_k=top_k, draft=draft)
    assert min(goodness_of_fit(case, verify)) > FITS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_lose_nothing(dtype):
    assert min(goodness_of_fit(Case(dtype=dtype), verify)) > FITS


def test_hiding_the_draft_probabilities_costs_acceptance_but_not_the_distribution():
    assert min(goodness_of_fit(Case(hide_draft_probs=True), verify)) > FITS
    start = torch.full((REQUESTS,), VOCABULARY)
    hidden, shown = (step(Case(hide_draft_probs=hide), verify, start, 0).accepted.sum() for hide in (True, False))
    assert hidden < 0.8 * shown


def test_greedy_drafts_passed_off_as_sampled_are_noticed():
    assert min(goodness_of_fit(Case(draft="unflagged"), verify)) < DOES_NOT_FIT


def test_a_draft_that_samples_from_another_distribution_than_it_reports_is_noticed():
    assert min(goodness_of_fit(Case(draft_temperature=0.5), verify)) < DOES_NOT_FIT


# --- the measurement can fail --------------------------------------------------------------------------------


def verifier_with(fault: str | None) -> Verifier:
    """The textbook algorithm for a whole batch, position by position, with one fault built in."""

    def faulty(logits, ids, lengths, draft_probs, sampling, positions, *, draft_onehot=None):  # type: ignore[no-untyped-def]
        start = (lengths + 1).cumsum(0) - lengths - 1
        tokens = torch.full((REQUESTS, DRAFTED + 1), -1)
        going = torch.ones(REQUESTS, dtype=torch.bool)
        for j in range(DRAFTED + 1):
            p = filtered_probs(logits[start + lengths.clamp(max=j)], sampling)
            q = draft_probs[:, min(j, DRAFTED - 1)]
            x = ids[:, min(j, DRAFTED - 1)].clamp(min=0)[:, None]
            has_draft = going & (j < lengths)
            u = uniform(sampling.seed, positions + j, Purpose.DRAFT if fault == "draft's number" else Purpose.ACCEPT)
            accept = has_draft & (u * q.gather(1, x)[:, 0] < p.gather(1, x)[:, 0])
            if fault == "accepts all":
                accept = has_draft
            residual = (p - q).clamp(min=0)
            if fault == "no residual":
                residual = p
            if fault == "unclipped residual":
                residual = (p - q).abs()
            if fault == "only drops the drafted token":
                residual = p.scatter(1, x, 0.0)
            rejected = has_draft & ~accept
            # A rejection without residual mass cannot happen in a sound verifier; here any token will do.
            weights = torch.where((rejected & (residual.sum(-1) > 0))[:, None], residual, p)
            purpose = torch.where(rejected, int(Purpose.RESIDUAL), int(Purpose.TARGET))
            v = u if fault == "acceptance's number" else uniform(sampling.seed, positions + j, purpose)
            token = torch.where(accept, x[:, 0], draw(weights, v))
            tokens[:, j] = torch.where(going, token, -1)
            going = accept
        emitted = (tokens >= 0).sum(1)
        return Verification(tokens, emitted - 1, emitted)

    return faulty


def test_the_textbook_batch_verifier_without_a_fault_passes():
    case = Case(temperature=0.9)
    assert min(goodness_of_fit(case, verifier_with(None))) > FITS
    assert torch.equal(first_two_tokens(case, verifier_with(None)), first_two_tokens(case, verify))


@pytest.mark.parametrize(
    "fault",
    [
        "accepts all",
        "no residual",
        "unclipped residual",
        "only drops the drafted token",
        "acceptance's number",
        "draft's number",
    ],
)
def test_a_broken_verifier_fails_the_same_measurement(fault):
    assert min(goodness_of_fit(Case(), verifier_with(fault))) < DOES_NOT_FIT
