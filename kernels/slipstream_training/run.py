"""One training run, from rows to a checkpoint folder that the engine loads.

While it trains, its files are in the folder `.training` of the output, from which an interrupted run resumes. The
finished checkpoint has no state of the trainer, and `training.json` says what it was trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.config import ModelConfig
from slipstream_engine.model.tensor_files import SINGLE, write_json
from torch import Tensor, nn

from slipstream_training.acceptance import Acceptance, count_acceptance
from slipstream_training.answers import Answers
from slipstream_training.rows import Batch, Row
from slipstream_training.trainer import STATE_FILE, Plan, Progress, Trainer

WORK, RECORD = ".training", "training.json"
BATCH_TOKENS = 1536
_MOST_STEPS_OF_A_PASS = 2000  # more tokens make longer steps: smoother gradients, and fewer updates


class Draft(Protocol):
    """A draft in training. A step has at least `step_tokens` tokens; the learning rates are as in `Plan`."""

    step_tokens: int
    matrix_lr: float
    other_lr: float

    @property
    def model(self) -> nn.Module: ...

    @property
    def config(self) -> ModelConfig: ...

    def begin(self, rows: Sequence[Row]) -> None:
        """Called once, with the rows of the run, before all other methods."""

    def loss(self, batch: Batch) -> Tensor:
        """The sum over tokens of weight * loss."""

    def matches(self, row: Row, draft_tokens: int) -> list[list[bool]]:
        """For each position of a draft and each token of the answer: whether it would be the draft's choice there."""

    def save(self, folder: Path) -> None:
        """Write the checkpoint into a new folder."""


class DraftRun:
    """Trains `draft` on `answers`, `passes` times each, and writes `output`. `origin` is as in `Trainer`.

    Raises:
        CheckpointError: `output` has files of something else, or the state of another run.
    """

    def __init__(
        self,
        draft: Draft,
        answers: Answers,
        output: Path,
        *,
        passes: float,
        draft_tokens: int,
        device: torch.device,
        origin: str,
    ) -> None:
        self._draft, self._answers, self._output = draft, answers, output
        self._draft_tokens = draft_tokens
        work = output / WORK
        if output.exists() and not work.is_dir() and any(output.iterdir()):
            raise CheckpointError(f"{output} is not empty, and has no interrupted training to resume")
        work.mkdir(parents=True, exist_ok=True)
        model = draft.model.to(device)
        draft.begin(answers.trained)
        self.before = self._measured()
        step_tokens = max(draft.step_tokens, answers.tokens // _MOST_STEPS_OF_A_PASS)
        plan = Plan(
            max(1, int(passes * answers.tokens)), step_tokens, matrix_lr=draft.matrix_lr, other_lr=draft.other_lr
        )
        self.trainer = Trainer(model.train(), draft.loss, plan, answers, work, draft.save, origin)

    def steps(self, stopping: Callable[[], bool]) -> Iterator[Progress]:
        """Train. When `stopping()` is true, the state is kept for a later run with the same output."""
        return self.trainer.run(stopping)

    @property
    def is_done(self) -> bool:
        return self.trainer.seen >= self.trainer.plan.tokens

    def finish(self, **facts: Any) -> Acceptance:
        """Move the checkpoint into place, with `facts` in its record. Returns the acceptance of the trained draft."""
        self.trainer.model.eval()
        after = self._measured()
        work = self._output / WORK
        weights = (work / SINGLE).read_bytes()
        record = {
            **facts,
            "answers": len(self._answers.trained),
            "held_out_answers": len(self._answers.unseen),
            "tokens": self.trainer.seen,
            "draft_tokens": self._draft_tokens,
            "tokens_per_step_before": round(self.before.tokens_per_step, 3),
            "tokens_per_step": round(after.tokens_per_step, 3),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        (work / STATE_FILE).unlink()
        write_json(work / RECORD, record)
        for path in work.iterdir():
            path.replace(self._output / path.name)
        work.rmdir()
        return after

    def _measured(self) -> Acceptance:
        total = Acceptance()
        for row in self._answers.unseen:
            total = total.plus(count_acceptance(self._draft.matches(row, self._draft_tokens)))
        return total
