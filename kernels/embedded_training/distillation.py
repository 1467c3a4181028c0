"""What the embedded draft learns: its target's distribution over the next token (Hinton et al. 2015)."""

from __future__ import annotations

import torch
from slipstream_engine.draft_training.batches import Batch
from slipstream_engine.draft_training.llama import Llama
from slipstream_engine.draft_training.precision import mixed_precision
from slipstream_engine.draft_training.trainer import Loss
from torch import Tensor
from torch.nn import functional


def distillation(target: Llama) -> Loss:
    """The Kullback-Leibler divergence from the target's distribution to the draft's, summed over `batch.weight`."""

    def loss(model: Llama, batch: Batch) -> Tensor:
        ids = batch.ids[:, :-1]
        with mixed_precision("cpu"):
            with torch.no_grad():
                wanted = functional.log_softmax(target(ids).float(), dim=-1)
            given = functional.log_softmax(model(ids).float(), dim=-1)
        divergence = functional.kl_div(given, wanted, reduction="none", log_target=True).sum(-1)  # [B, T - 1]
        return (divergence * batch.weight).sum()

    return loss
