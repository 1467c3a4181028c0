"""Training of a draft of the Llama family."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from slipstream_engine.drafts.compatibility import check_draft
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import load_config
from slipstream_engine.model.tensor_files import is_eagle_head
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_engine.text.tokenizer_files import TEXT_FILES, read_json
from torch import Tensor

from slipstream_training.models.llama import Llama, config_json, llama_config
from slipstream_training.models.losses import cross_entropy
from slipstream_training.rows import Batch, Row


class LlamaDraft:
    """A draft whose checkpoint has `config` as config.json, and the tokenizer of `folder`."""

    step_tokens, matrix_lr, other_lr = 2048, 3e-3, 0.75 * 3e-3

    def __init__(self, model: Llama, config: dict[str, Any], folder: Path) -> None:
        self.model, self.config = model, model.config
        self._json, self._folder = config, folder

    def begin(self, rows: Sequence[Row]) -> None:
        pass

    def loss(self, batch: Batch) -> Tensor:
        return cross_entropy(self.model, batch)

    @torch.no_grad()
    def matches(self, row: Row, draft_tokens: int) -> list[list[bool]]:
        ids = torch.as_tensor(row.ids, dtype=torch.int64, device=self.model.cos.device)
        choices = self.model(ids[None])[0, row.prompt_tokens - 1 : -1].argmax(-1)
        return [(choices == ids[row.prompt_tokens :]).tolist()] * draft_tokens

    def save(self, folder: Path) -> None:
        self.model.save(folder, self._json)
        for name in TEXT_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def start_from(draft: Path, target: Path) -> LlamaDraft:
    """Go on with the checkpoint `draft`.

    Raises:
        CheckpointError: a folder is broken, or the draft is an EAGLE head.
        DraftMismatchError: the draft's token ids differ from the target's.
    """
    if is_eagle_head(draft):
        raise CheckpointError(f"{draft} is an EAGLE head, and training goes on only with models of the Llama family")
    of_target, of_draft = (Tokenizer.load(folder, checkpoint=folder) for folder in (target, draft))
    check_draft(of_target, of_draft, load_config(target).vocab_rows, load_config(draft).vocab_rows)
    return LlamaDraft(Llama.load(draft), read_json(draft / "config.json"), draft)


def start_new(target: Path, *, layers: int, hidden: int) -> LlamaDraft:
    """A new model for `target` with random weights."""
    config = load_config(target)
    head_dim = 64 if hidden % 64 == 0 and hidden > 64 else 32
    heads = max(1, hidden // head_dim)
    new = llama_config(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        intermediate=3 * hidden,
        vocab=config.vocab_rows,
        head_dim=head_dim,
        context=config.context_tokens,
    )
    raw = read_json(target / "config.json")
    ids = {name: raw.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return LlamaDraft(Llama(new), config_json(new, **ids), target)
