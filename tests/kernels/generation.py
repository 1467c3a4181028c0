"""Generation from a small target by speculative steps, from many seeds at once: what the tokens that come out are
compared with, and how they come about.

The target's next token depends on the one before it, and through penalties on the whole text; something that disagrees
with it drafts.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np
import slipstream_kernels
import torch
from torch import Tensor

from tests.kernels.oracle import Floats, Rules, adjusted, distribution

VOCABULARY = 6
START = VOCABULARY
"""The context of the first token: the tables' last row."""
WRITTEN = (1,)
"""What each request has written before."""
PROMPT = (0, 1, 4)

PENALTIES = {"repetition": 1.4, "frequency": 0.3, "presence": 0.5, "prompt": PROMPT}
BIAS = {0: 0.8, 3: -1.1, 5: 0.4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How requests sample and how their drafts come about.

    `draft`: `greedy` (the draft's argmax) and `lookup` (a fixed token after each) are one-hot; `sampled` draws with
    the request's own temperature and filters, `free` at temperature 1 without any, `narrow` and `wide` as `free` from
    one token less or more than the target has; `mixed` is half `sampled`, half `greedy` and flagged as one-hot;
    `hidden` is `free` passed off as one-hot. Two that no verifier can put right: `unflagged` is `greedy` passed off as
    sampled, `misreported` was drawn at another temperature than it says.
    """

    name: str
    draft: str
    rules: Rules = field(default_factory=Rules)
    grammar: bool = False
    block: bool = False
    dtype: torch.dtype = torch.float32
    drafted: int = 2
    ragged: bool = True
    """Whether draft lengths are 0 to `drafted` side by side."""
    agreement: float = 0.5
    """The draft's logits are the target's times this and `noise` times a normal number."""
    noise: float = 0.9
    requests: int = 24_000
    device: str = "cpu"

    @property
    def first_seed(self) -> int:
        """Seeds of a case's own, the same in every run."""
        return zlib.crc32(self.name.encode()) << 24

    def on(self, device: str, requests: int) -> Case:
        """The same elsewhere, with another number of requests."""
        return replace(self, device=device, requests=requests)


def tables(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """After each token: the target's and the draft's logits [V + 1, V] and what the grammar allows, bool."""
    generator = torch.Generator().manual_seed(11)
    target = 1.2 * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator)
    noise = case.noise * torch.randn(VOCABULARY + 1, VOCABULARY + 1, generator=generator)
    draft = torch.nn.functional.pad(case.agreement * target, (0, 1)) + noise
    width = VOCABULARY + {"narrow": -1, "wide": 1}.get(case.draft, 0)
    allowed = torch.rand(VOCABULARY + 1, VOCABULARY, generator=generator) < 0.6
    allowed[:, 2] = True
    tensors = (target.to(case.dtype), draft[:, :width].to(case.dtype), allowed if case.grammar else allowed | True)
    return tensors[0].to(case.device), tensors[1].to(case.device), tensors[2].to(case.device)


def expected(case: Case) -> Floats:
    """The probabilities of the first two tokens, float64 [V, V]."""
    target, _, allowed = (table.cpu().to(torch.float32).numpy() for table in tables(case))

    def after(context: int, written: tuple[int, ...]) -> Floats:
        scores = adjusted(target[context], case.rules, written, allowed[context] > 0)
        return distribution(scores, case.rules)

    following = np.stack([after(token, (*WRITTEN, token)) for token in range(VOCABULARY)])
    return after(START, WRITTEN)[:, None] * following


def first_two_tokens(case: Case, api: ModuleType = slipstream_kernels, **options: Any) -> np.ndarray:
    """int64 [N, 2], in as many steps as that takes; `options` are passed to `verify` of the package `api`."""
    everybody = torch.arange(case.requests, device=case.device)
    result = step(case, everybody, torch.full_like(everybody, START), written=None, api=api, **options)
    tokens = result.token_ids[:, :2].clone()
    short = (result.lengths < 2).nonzero()[:, 0]
    first = tokens[short, 0]
    if len(short):
        tokens[short, 1] = step(case, short, first, written=first, api=api, **options).token_ids[:, 0]
    return tokens.cpu().numpy()


def step(
    case: Case,
    who: Tensor,
    context: Tensor,
    *,
    written: Tensor | None,
    api: ModuleType = slipstream_kernels,
    **options: Any,
) -> Any:
    """One speculative step.

    Args:
        who: int64 [B], numbers of the requests that take it.
        context: int64 [B], the last token of each.
        written: int64 [B], what each has written after `WRITTEN`; None: nothing.
    """
    target, draft, _ = tables(case)
    position = len(WRITTEN) + (written is not None)
    ids, log_probs, one_hot = propose(case, draft, who, context, position, api)
    lengths = (who * 7 + 3) % (case.drafted + 1) if case.ragged else torch.full_like(who, case.drafted)
    owned = torch.arange(case.drafted + 1, device=case.device) <= lengths[:, None]
    rows = torch.cat((context[:, None], ids), 1)[owned]
    if case.draft == "wide":
        options["check_values"] = False
    return api.verify(
        target[rows],
        ids.masked_fill(~owned[:, 1:], -1),
        lengths,
        None if case.draft in ("greedy", "lookup", "hidden") else log_probs,
        sampling_of(case, case.rules, who, api),
        torch.full_like(who, position),
        draft_onehot=one_hot if case.draft == "mixed" else None,
        adjustments=adjustments_of(case, written, len(who), rows, api),
        block_verification=case.block,
        **options,
    )


def propose(
    case: Case, table: Tensor, who: Tensor, context: Tensor, position: int, api: ModuleType
) -> tuple[Tensor, ...]:
    """Drafted ids [B, K], the logits to report for them [B, K, W], and whose drafts are one-hot, bool [B]."""
    even = who % 2 == 0
    one_hot = {"greedy": even | True, "unflagged": even | True, "mixed": even}.get(case.draft, even & False)
    sampling = sampling_of(case, case.rules if case.draft in ("sampled", "mixed") else Rules(), who, api)
    ids, log_probs = [], []
    for offset in range(case.drafted):
        logits = table[context]
        # The block rule also looks at drafts that it then discards: each step needs numbers of its own.
        purpose = int(api.Purpose.DRAFT) + (len(api.Purpose) * offset if case.block else 0)
        positions = torch.full_like(who, position + offset)
        chosen, reported = api.sample(logits, sampling, positions, purpose)
        if case.draft == "misreported":
            chosen, _ = api.sample(2 * logits, sampling, positions, purpose)
        chosen = (context + 2) % VOCABULARY if case.draft == "lookup" else chosen
        context = torch.where(one_hot, logits.float().argmax(-1), chosen)
        ids.append(context)
        log_probs.append(reported)
    return torch.stack(ids, 1), torch.stack(log_probs, 1), one_hot


def sampling_of(case: Case, rules: Rules, who: Tensor, api: ModuleType) -> Any:
    """One set of parameters for all of `who`, and a seed for each."""
    columns = ([value] * len(who) for value in (rules.temperature, rules.top_p, rules.top_k))
    seeds = [case.first_seed + number for number in who.tolist()]
    return api.SamplingBatch.of(*columns, seeds, case.device, min_p=[rules.min_p] * len(who))


def adjustments_of(case: Case, written: Tensor | None, requests: int, contexts: Tensor, api: ModuleType) -> Any:
    """The batch's `LogitAdjustments`, None where the case makes none. `contexts` int64 [rows]: the token before."""
    rules, options = case.rules, {}
    if rules.bias:
        options["bias"] = [rules.bias] * requests
    if rules.penalises:
        strengths = {name: getattr(rules, name) for name in ("repetition", "frequency", "presence")}
        options |= {name: [value] * requests for name, value in strengths.items()}
        options["prompts"] = [rules.prompt] * requests
        last = [()] * requests if written is None else written[:, None].tolist()
        options["outputs"] = [(*WRITTEN, *tokens) for tokens in last]
    if case.grammar:
        options["allowed"] = [row.nonzero()[:, 0].tolist() for row in tables(case)[2]]
    if not options:
        return None
    adjustments = api.LogitAdjustments.of(VOCABULARY, **options, device=case.device)
    return replace(adjustments, bitmask=adjustments.bitmask[contexts]) if case.grammar else adjustments
