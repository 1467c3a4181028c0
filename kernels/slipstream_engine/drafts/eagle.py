"""EAGLE heads: one small layer that continues the target's own hidden states (Li et al., "EAGLE: Speculative Sampling
Requires Rethinking Feature Uncertainty", ICML 2024).

A feature is the target's hidden state after its final norm. The head reads the feature of a token together with the
embedding of the token after it, and predicts that token's feature, from which the target's own output embedding gives
the draft. Checkpoints are in the format of EAGLE-1, which vLLM (`"method": "eagle"`) reads as well: `fc.weight` and
`layers.N.*` without the first input norm. Embeddings are the target's. Beside it, `draft_token_ids.json` may list the
token ids that the head proposes (as in FR-Spec, Zhao et al. 2025), which saves most of a pass for a small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from slipstream_engine.drafts.compatibility import check_eagle_head
from slipstream_engine.drafts.sources import DraftRow, Drafts, ModelDrafts
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.cache import SlotCache
from slipstream_engine.model.checkpoint import load_eagle_weights
from slipstream_engine.model.config import load_config
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span, StepBatch

TOKEN_IDS_FILE = "draft_token_ids.json"


class EagleHead:
    """The weights of a head on its target. `layers` has the target's embeddings, `fc` is [hidden, 2 * hidden], and
    `token_ids` are the ids of the rows of its output embedding, None for all."""

    def __init__(self, layers: Model, fc: Tensor, token_ids: Tensor | None) -> None:
        self.layers = layers
        self._fc, self._token_ids = fc, token_ids

    @classmethod
    def load(cls, folder: Path, target: Model) -> EagleHead:
        """Load a checkpoint folder.

        Raises:
            CheckpointError: the folder is broken or needs an unsupported feature.
            DraftMismatchError: the head was made for another target.
        """
        config = load_config(folder)
        check_eagle_head(target.config, config)
        fc, layers = load_eagle_weights(folder, config, target.device, target.dtype)
        ids = _token_ids(folder / TOKEN_IDS_FILE, config.vocab_rows)
        token_ids = None if ids is None else torch.tensor(ids, device=target.device)
        context = min(target.context_tokens, config.context_tokens)
        weights = target.weights_around(layers, token_ids)
        return cls(Model(config, weights, context_tokens=context, device=target.device), fc, token_ids)

    def forward(self, token_ids: Tensor, features: Tensor, batch: StepBatch, cache: SlotCache) -> Tensor:
        """The predicted features [T, hidden] of `token_ids` [T] i64, from the `features` [T, hidden] of the tokens
        before them."""
        fused = functional.linear(torch.cat((self.layers.embed(token_ids), features), dim=-1), self._fc)
        return self.layers.run(fused, batch, cache)

    def likeliest(self, features: Tensor) -> Tensor:
        """The likeliest next token [rows] i64 that the head can propose, from `features` [rows, hidden]."""
        rows = self.layers.read(features).argmax(-1)
        return rows if self._token_ids is None else self._token_ids[rows]


class EagleDrafts(ModelDrafts):
    """Drafts of an EAGLE head. The cache's position j holds the feature of token j with the embedding of token j + 1.

    Predicted features are used for the rest of their step only: what was accepted is read again with the target's own
    features, which `observe` keeps until the next draft.
    """

    shift = 1

    def __init__(self, head: EagleHead, target: Model, slots: int) -> None:
        super().__init__(head.layers, slots, target.config.vocab_rows)
        self._head, self._target = head, target
        self._unread: list[list[Tensor]] = [[] for _ in range(slots)]  # of each slot, the target's hidden states
        self._predicted: dict[int, Tensor] = {}  # features [1, hidden] by slot, within one proposal

    def observe(self, slot: int, hidden: Tensor) -> None:
        self._unread[slot].append(hidden)

    def propose(self, rows: Sequence[DraftRow]) -> Drafts:
        drafts = super().propose(rows)
        self._predicted.clear()
        for row, length in zip(rows, drafts.lengths, strict=True):
            if length:
                self._cached[row.slot] = len(row.tokens) - 1
        return drafts

    def commit(self, slot: int, accepted: int) -> None:
        """Nothing to do: `observe` has the features of the accepted tokens."""

    def release(self, slot: int) -> None:
        super().release(slot)
        self._unread[slot].clear()

    def _likeliest(self, slots: list[int], last: Tensor) -> Tensor:
        self._predicted = dict(zip(slots, last.split(1), strict=True))
        return self._head.likeliest(last)

    def _forward(self, spans: list[Span], tokens: list[int]) -> Tensor:
        model = self._head.layers
        features = torch.cat([self._features(span) for span in spans])
        self._note_written(spans)
        batch = model.layout(spans)
        return self._head.forward(torch.tensor(tokens, device=model.device), features, batch, self._cache)

    def _features(self, span: Span) -> Tensor:
        """The features [tokens, hidden] for `span`: predicted in this proposal, or those of the target."""
        if (predicted := self._predicted.get(span.slot)) is not None:
            return predicted
        unread = torch.cat(self._unread[span.slot])
        self._unread[span.slot] = [unread[span.tokens :]]
        return self._target.features(unread[: span.tokens])


def _token_ids(file: Path, vocab_rows: int) -> list[int] | None:
    """The token ids in `file`, None if there is no such file."""
    if not file.is_file():
        return None
    try:
        ids = msgspec.json.decode(file.read_bytes(), type=list[int])
    except (OSError, msgspec.DecodeError) as exc:
        raise CheckpointError(f"{file}: not a list of token ids: {exc}") from exc
    if not ids or len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < vocab_rows:
        raise CheckpointError(f"{file}: the token ids must be different and between 0 and {vocab_rows - 1}")
    return ids
