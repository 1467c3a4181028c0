"""Losses of the Llama family."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from slipstream_training.models.llama import Llama
from slipstream_training.models.precision import mixed_precision
from slipstream_training.rows import Batch


def cross_entropy(model: Llama, batch: Batch) -> Tensor:
    """The loss against the tokens themselves, summed over `batch.weight`. On texts that a target has written, this is
    distillation from their sequences (Kim & Rush, EMNLP 2016), for which the target's weights are not needed."""
    device = model.cos.device
    ids, weight = batch.ids.to(device), batch.weight.to(device)
    with mixed_precision(device.type):
        logits = model(ids[:, :-1])
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weight.flatten()).sum()


def distillation(target: Llama, model: Llama, batch: Batch) -> Tensor:
    """The Kullback-Leibler divergence from the target's distribution to the model's (Hinton et al. 2015), summed over
    `batch.weight`."""
    ids = batch.ids[:, :-1]
    with mixed_precision("cpu"):
        with torch.no_grad():
            wanted = functional.log_softmax(target(ids).float(), dim=-1)
        given = functional.log_softmax(model(ids).float(), dim=-1)
    divergence = functional.kl_div(given, wanted, reduction="none", log_target=True).sum(-1)  # [B, T - 1]
    return (divergence * batch.weight).sum()
