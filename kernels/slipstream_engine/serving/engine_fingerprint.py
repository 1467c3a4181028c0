"""The fingerprint of an engine: a hash of all that determines an answer besides the request and its seed.

It covers the target's configuration and weights, their number format, the kind of device, the tokenizer's files and the
sampling rule. It does not depend on the draft, the draft length or the folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from slipstream_engine.model.model import Model
from slipstream_engine.text.tokenizer_files import TEXT_FILES

# Increase it whenever the same logits and seed give another token: with other noise, filters or order of filters.
_SAMPLING_RULE = "equality-1"
_SAMPLED_VALUES = 4096
_HEX_DIGITS = 16


def fingerprint_of(target: Model, *, checkpoint: Path, tokenizer: Path) -> str:
    """The fingerprint of an engine with `target` from the folder `checkpoint` and the tokenizer of the folder
    `tokenizer`. Of each weight tensor it reads at most 4,096 values at regular distances."""
    digest = hashlib.sha256()
    for fact in (_SAMPLING_RULE, target.device.type, str(target.dtype)):
        digest.update(fact.encode() + b"\0")
    digest.update(msgspec.json.encode(target.config, order="deterministic"))
    for folder in dict.fromkeys((checkpoint, tokenizer)):
        for name in TEXT_FILES:
            file = folder / name
            digest.update(hashlib.sha256(file.read_bytes()).digest() if file.is_file() else b"\0")
    for tensor in target.tensors():
        digest.update(_sample(tensor))
    return f"fp_{digest.hexdigest()[:_HEX_DIGITS]}"


def _sample(tensor: Tensor) -> bytes:
    values = tensor.detach().reshape(-1)
    chosen = values[:: max(1, -(-values.numel() // _SAMPLED_VALUES))].contiguous().cpu()
    return chosen.view(torch.uint8).numpy().tobytes()
