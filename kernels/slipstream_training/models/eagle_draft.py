"""Training of an EAGLE head: it learns a target's features, and its distribution over the most frequent tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from slipstream_engine.model.config import ModelConfig, RopeConfig
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span
from torch import Tensor
from torch.nn import functional

from slipstream_training.models.eagle_head import Head, HeadPass
from slipstream_training.models.llama import llama_config
from slipstream_training.models.precision import mixed_precision
from slipstream_training.rows import Batch, Row

PROPOSED, DEPTH = 8192, 3  # tokens that the head can propose, and draft tokens that are trained together
_LATER = 0.8  # weight of each draft position, relative to the one before
_FEATURE_WEIGHT = 0.3


class EagleDraft:
    """A new head for `target`, on the target's device. The target's features of a row are computed once."""

    step_tokens, matrix_lr, other_lr = 1, 4e-3, 1e-3  # a step for each batch

    def __init__(self, target: Model) -> None:
        self.config = _config(target.config)
        self.model = Head(self.config)
        self._target, self._cache = target, target.new_cache(1)
        self._embedding = target.weights_around((), None).embedding.float()
        self._token_ids: list[int] = []
        self._features: dict[bytes, Tensor] = {}

    def begin(self, rows: Sequence[Row]) -> None:
        self._token_ids = frequent_tokens(rows, PROPOSED)
        ids = torch.tensor(self._token_ids, device=self._target.device)
        self._proposed = self._target.weights_around((), ids).head.float()  # [proposed, hidden]

    def loss(self, batch: Batch) -> Tensor:
        device = self._target.device
        ids, weight = batch.ids.to(device), batch.weight[:, 1:].to(device)
        features = torch.zeros(len(ids), ids.shape[1] - 1, self.config.hidden_size, device=device)
        for at, row in enumerate(batch.rows):
            features[at, : len(row.ids) - 1] = self._features_of(row)
        wanted, total = features[:, 1:], torch.zeros((), device=device)
        with mixed_precision(device.type):
            teacher = functional.log_softmax(functional.linear(wanted, self._proposed).float(), dim=-1)
            for position, predicted in enumerate(self._predictions(ids, features, DEPTH)):
                given = functional.log_softmax(functional.linear(predicted, self._proposed).float(), dim=-1)
                divergence = functional.kl_div(given, teacher, reduction="none", log_target=True).sum(-1)
                distance = functional.smooth_l1_loss(predicted.float(), wanted, reduction="none").mean(-1)
                losses = (divergence + _FEATURE_WEIGHT * distance) * weight
                total = total + _LATER**position * losses[:, position:].sum()
        return total

    @torch.no_grad()
    def matches(self, row: Row, draft_tokens: int) -> list[list[bool]]:
        ids = torch.as_tensor(row.ids, dtype=torch.int64, device=self._target.device)[None]
        proposed, first = torch.tensor(self._token_ids, device=ids.device), max(0, row.prompt_tokens - 2)
        # Nothing can be drafted after a single token, since no feature is known.
        unknown = [False] * (2 - row.prompt_tokens)
        found = []
        for predicted in self._predictions(ids, self._features_of(row)[None].float(), draft_tokens):
            chosen = proposed[functional.linear(predicted, self._proposed).argmax(-1)]
            found.append(unknown + (chosen == ids[:, 2:])[0, first:].tolist())
        return found

    def save(self, folder: Path) -> None:
        self.model.save(folder, self._token_ids)

    def _predictions(self, ids: Tensor, features: Tensor, depth: int) -> Iterator[Tensor]:
        """For each position of a draft, the predicted features [B, T - 2, hidden] of `ids[:, 1:-1]`, with `features`
        [B, T - 1, hidden] of `ids[:, :-1]`."""
        embedded, given = functional.embedding(ids[:, 1:-1], self._embedding), features[:, :-1]
        passes: list[HeadPass] = []
        for _ in range(depth):
            predicted, made = self.model(embedded, given, passes)
            passes.append(made)
            yield predicted
            given = functional.pad(predicted, (0, 0, 1, 0))[:, :-1]

    @torch.no_grad()
    def _features_of(self, row: Row) -> Tensor:
        """The target's normed hidden states [tokens - 1, hidden], in bfloat16, of all tokens but the last."""
        key = row.ids.tobytes()
        if key not in self._features:
            ids = torch.as_tensor(row.ids[:-1], dtype=torch.int64, device=self._target.device)
            hidden = self._target.forward(ids, self._target.layout([Span(0, 0, len(ids))]), self._cache)
            self._features[key] = self._target.features(hidden).to(torch.bfloat16)
        return self._features[key]


def frequent_tokens(rows: Sequence[Row], count: int) -> list[int]:
    """The `count` most frequent token ids of the answers, ascending."""
    counts = Counter(token for row in rows for token in row.ids[row.prompt_tokens :].tolist())
    return sorted(token for token, _ in counts.most_common(count))


def _config(target: ModelConfig) -> ModelConfig:
    """A head for `target`: one layer of its dimensions."""
    return llama_config(
        layers=1,
        hidden=target.hidden_size,
        heads=target.heads,
        kv_heads=target.kv_heads,
        intermediate=target.intermediate_size,
        vocab=target.vocab_rows,
        head_dim=target.head_dim,
        context=target.context_tokens,
        rope=RopeConfig(theta=target.rope.theta),  # config.json of a head has no scaling
        norm_eps=target.norm_eps,
    )
