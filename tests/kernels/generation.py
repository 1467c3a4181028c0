"""Generation from a small target by speculative steps, from many seeds at once: what the tokens that come out are
compared with, and how they come about.

The target's next token depends on the one before it, and through penalties on the whole text; something that disagrees
with it drafts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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

    `draft`: the draft's argmax (`greedy`), a fixed token after each (`lookup`), or the token that the draft's
    distribution has with the request's own noise (`shared`).
    """

    name: str
    draft: str
    rules: Rules = field(default_factory=Rules)
    grammar: bool = False
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
    draft = case.agreement * target + case.noise * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator)
    allowed = torch.rand(VOCABULARY + 1, VOCABULARY, generator=generator) < 0.6
    allowed[:, 2] = True
    tensors = (target.to(case.dtype), draft.to(case.dtype), allowed if case.grammar else allowed | True)
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
    """int64 [N, 2], of all requests of the case."""
    return np.array(decode(case, range(case.requests), 2, api=api, **options), dtype=np.int64)


def decode(
    case: Case,
    who: Sequence[int],
    count: int,
    *,
    drafted: int | None = None,
    start: Sequence[Sequence[int]] | None = None,
    api: ModuleType = slipstream_kernels,
    **options: Any,
) -> list[list[int]]:
    """The first `count` tokens of requests number `who`, in as many steps as that takes.

    `drafted` draft tokens in each step; None: the case's, 0 to `case.drafted` of them side by side if it is ragged.
    `start` are the tokens that they have already. `options` are passed to `verify` of the package `api`.
    """
    texts: list[list[int]] = [[] for _ in who] if start is None else [list(text) for text in start]
    while short := [i for i, text in enumerate(texts) if len(text) < count]:
        result = step(case, [who[i] for i in short], [texts[i] for i in short], drafted, api, **options)
        for i, tokens, length in zip(short, result.token_ids.tolist(), result.lengths.tolist(), strict=True):
            assert length > 0, "a request failed"
            texts[i] += tokens[:length]
    return [text[:count] for text in texts]


def step(
    case: Case, numbers: list[int], texts: list[list[int]], drafted: int | None, api: ModuleType, **options: Any
) -> Any:
    """One speculative step of requests `numbers`, which have written `texts` after `WRITTEN`."""
    target, draft, _ = tables(case)
    most = case.drafted if drafted is None else drafted
    who = torch.tensor(numbers, device=case.device)
    context = torch.tensor([text[-1] if text else START for text in texts], device=case.device)
    positions = torch.tensor([len(WRITTEN) + len(text) for text in texts], device=case.device)
    ids = propose(case, draft, who, context, positions, most, api)
    ragged = case.ragged and drafted is None
    lengths = (who * 7 + positions) % (most + 1) if ragged else torch.full_like(who, most)
    owned = torch.arange(most + 1, device=case.device) <= lengths[:, None]
    rows = torch.cat((context[:, None], ids), 1)[owned]
    return api.verify(
        target[rows],
        ids,  # beyond a request's draft length too: these are ignored
        lengths,
        sampling_of(case, who, api),
        positions,
        adjustments=adjustments_of(case, texts, rows, api),
        **options,
    )


def propose(
    case: Case, table: Tensor, who: Tensor, context: Tensor, positions: Tensor, count: int, api: ModuleType
) -> Tensor:
    """Drafted ids [B, count]."""
    sampling = sampling_of(case, who, api)
    ids = torch.empty(len(who), count, dtype=torch.int64, device=case.device)
    for offset in range(count):
        logits = table[context]
        if case.draft == "shared":
            none = torch.zeros_like(who)
            drawn = api.verify(logits, none[:, None][:, :0], none, sampling, positions + offset, backend="reference")
            context = drawn.token_ids[:, 0]
        else:
            context = logits.float().argmax(-1) if case.draft == "greedy" else (context + 2) % VOCABULARY
        ids[:, offset] = context
    return ids


def sampling_of(case: Case, who: Tensor, api: ModuleType) -> Any:
    """One set of parameters for all of `who`, and a seed for each."""
    rules = case.rules
    columns = ([value] * len(who) for value in (rules.temperature, rules.top_p, rules.top_k))
    seeds = [case.first_seed + number for number in who.tolist()]
    return api.SamplingBatch.of(*columns, seeds, case.device, min_p=[rules.min_p] * len(who))


def adjustments_of(case: Case, texts: list[list[int]], contexts: Tensor, api: ModuleType) -> Any:
    """The batch's `LogitAdjustments`, None where the case makes none. `contexts` int64 [rows]: the token before."""
    rules, requests = case.rules, len(texts)
    options: dict[str, Any] = {}
    if rules.bias:
        options["bias"] = [rules.bias] * requests
    if rules.penalises:
        strengths = {name: getattr(rules, name) for name in ("repetition", "frequency", "presence")}
        options |= {name: [value] * requests for name, value in strengths.items()}
        options["prompts"] = [rules.prompt] * requests
        options["outputs"] = [(*WRITTEN, *text) for text in texts]
    if case.grammar:
        options["allowed"] = [row.nonzero()[:, 0].tolist() for row in tables(case)[2]]
    if not options:
        return None
    adjustments = api.LogitAdjustments.of(VOCABULARY, **options, device=case.device)
    return replace(adjustments, bitmask=adjustments.bitmask[contexts]) if case.grammar else adjustments
