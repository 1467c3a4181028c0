"""One training run, from rows to a checkpoint folder that the engine loads.

While it trains, its files are in the folder `.training` of the output, from which an interrupted run resumes. The
finished checkpoint has no state of the trainer, and `training.json` says what it was trained on.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from slipstream_engine.config import load_config
from slipstream_engine.draft_compatibility import check_draft
from slipstream_engine.draft_training.acceptance import Acceptance, acceptance
from slipstream_engine.draft_training.answers import Answers
from slipstream_engine.draft_training.llama import Llama, config_json, llama_config
from slipstream_engine.draft_training.trainer import STATE_FILE, Plan, Progress, Trainer, cross_entropy
from slipstream_engine.errors import CheckpointError
from slipstream_engine.tensor_files import SINGLE, is_eagle_head, write_json
from slipstream_engine.tokenizer import Tokenizer
from slipstream_engine.tokenizer_files import TEXT_FILES, read_json

WORK, RECORD = ".training", "training.json"
_LR = 3e-3
_STEP_TOKENS, BATCH_TOKENS = 2048, 1536
_MOST_STEPS_OF_A_PASS = 2000  # more tokens make longer steps: smoother gradients, and fewer updates


class Start(NamedTuple):
    """The model that a run starts with, and the files of its checkpoint: `config` for config.json, and the `folder`
    with the tokenizer."""

    model: Llama
    config: dict[str, Any]
    folder: Path


def start_from(draft: Path, target: Path) -> Start:
    """Go on with the checkpoint `draft`.

    Raises:
        CheckpointError: a folder is broken, or the draft is an EAGLE head.
        DraftMismatchError: the draft's token ids differ from the target's.
    """
    if is_eagle_head(draft):
        raise CheckpointError(f"{draft} is an EAGLE head, and only models of the Llama family are trained here")
    of_target, of_draft = (Tokenizer.load(folder, checkpoint=folder) for folder in (target, draft))
    check_draft(of_target, of_draft, load_config(target).vocab_rows, load_config(draft).vocab_rows)
    return Start(Llama.load(draft), read_json(draft / "config.json"), draft)


def start_new(target: Path, *, layers: int, hidden: int) -> Start:
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
    return Start(Llama(new), config_json(new, **ids), target)


class Run:
    """Trains the model of `start` on `answers`, `passes` times each, and writes `output`. `origin` is as in `Trainer`.

    Raises:
        CheckpointError: `output` has files of something else, or the state of another run.
    """

    def __init__(
        self,
        start: Start,
        answers: Answers,
        output: Path,
        *,
        passes: float,
        draft_tokens: int,
        device: torch.device,
        origin: str,
    ) -> None:
        self._start, self._answers, self._output = start, answers, output
        self._draft_tokens = draft_tokens
        work = output / WORK
        if output.exists() and not work.is_dir() and any(output.iterdir()):
            raise CheckpointError(f"{output} is not empty, and has no interrupted training to resume")
        work.mkdir(parents=True, exist_ok=True)
        model = start.model.to(device)
        self.before = self._measured(model)
        step_tokens = max(_STEP_TOKENS, answers.tokens // _MOST_STEPS_OF_A_PASS)
        plan = Plan(max(1, int(passes * answers.tokens)), step_tokens, matrix_lr=_LR, other_lr=0.75 * _LR)
        self.trainer = Trainer(model.train(), cross_entropy, plan, answers, work, self._save, origin)

    def steps(self, stopping: Callable[[], bool]) -> Iterator[Progress]:
        """Train. When `stopping()` is true, the state is kept for a later run with the same output."""
        return self.trainer.run(stopping)

    @property
    def is_done(self) -> bool:
        return self.trainer.seen >= self.trainer.plan.tokens

    def finish(self, **facts: Any) -> Acceptance:
        """Move the checkpoint into place, with `facts` in its record. Returns the acceptance of the trained draft."""
        after = self._measured(self.trainer.model.eval())
        work = self._output / WORK
        weights = (work / SINGLE).read_bytes()
        record = {
            **facts,
            "answers": len(self._answers.trained),
            "held_out_answers": len(self._answers.unseen),
            "tokens": self.trainer.seen,
            "draft_tokens": self._draft_tokens,
            "tokens_per_step_before": round(self.before.rates()["tokens_per_step"], 3),
            "tokens_per_step": round(after.rates()["tokens_per_step"], 3),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        (work / STATE_FILE).unlink()
        write_json(work / RECORD, record)
        for path in work.iterdir():
            path.replace(self._output / path.name)
        work.rmdir()
        return after

    def _measured(self, model: Llama) -> Acceptance:
        return acceptance(model, self._answers.unseen, self._draft_tokens)

    def _save(self, model: Llama, folder: Path) -> None:
        model.save(folder, self._start.config)
        for name in TEXT_FILES:
            if (self._start.folder / name).is_file():
                shutil.copyfile(self._start.folder / name, folder / name)
