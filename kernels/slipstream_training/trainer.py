"""The training loop: optimizers, learning rates, and a checkpoint from which an interrupted run goes on."""

from __future__ import annotations

import os
import pickle  # nosec B403 # its exception
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from slipstream_engine.errors import CheckpointError
from torch import Tensor, nn

from slipstream_training.rows import Batch, BatchSource

STATE_FILE = "trainer.pt"
_REPORT_EVERY = 25

Loss = Callable[[Batch], Tensor]
"""The sum over tokens of weight * loss."""


class Plan(NamedTuple):
    """Parameters of a run. A step has `step_tokens` tokens, and a run `tokens`. The learning rates of matrices and of
    other parameters warm up, then fall linearly to the fraction `final_lr`."""

    tokens: int
    step_tokens: int
    matrix_lr: float
    other_lr: float
    warmup: float = 0.02
    final_lr: float = 0.0
    clip: float = 1.0
    save_every_s: float = 180.0

    def lr_scale(self, seen: int) -> float:
        done = min(seen / self.tokens, 1.0)
        falling = 1.0 - (1.0 - self.final_lr) * (done - self.warmup) / (1.0 - self.warmup)
        return min(done / self.warmup + 0.02, falling, 1.0)


class Progress(NamedTuple):
    """A run so far. `loss` is that of the last step, per weighted token. `held_out` is the loss on texts that are not
    trained on, None between checkpoints."""

    step: int
    seen: int
    tokens: int
    loss: float
    tokens_per_s: float
    held_out: float | None

    @property
    def left_s(self) -> float:
        return max(0, self.tokens - self.seen) / self.tokens_per_s

    def line(self) -> str:
        held_out = "" if self.held_out is None else f"  held-out loss {self.held_out:.4f}"
        return (
            f"step {self.step}  loss {self.loss:.4f}{held_out}  {self.seen / 1e6:.2f} M tokens  "
            f"{self.tokens_per_s:.0f} tokens/s  left {self.left_s / 60:.1f} min"
        )


class Trainer:
    """One training run. `save` writes the model into a new folder; its files, and the trainer's state, are then moved
    into `out`, from where the run resumes."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        plan: Plan,
        source: BatchSource,
        out: Path,
        save: Callable[[Path], None],
        origin: str = "",
    ) -> None:
        """`origin` describes the run: it resumes from a state of the same description alone.

        Raises:
            CheckpointError: the state in `out` is broken, or of another run.
        """
        self.model, self.loss, self.plan, self._origin = model, loss, plan, origin
        self._source, self._out, self._save = source, out, save
        self._optimizers = optimizers(model, plan)
        self.step, self.seen, self._next_batch = 0, 0, 0
        self._resume()

    def run(self, stopping: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Train until `plan.tokens` are seen or `stopping()` is true, with checkpoints on the way and at the end."""
        stream = self._source.batches(self._next_batch)
        started, seen_before, saved = time.monotonic(), self.seen, time.monotonic()
        loss = 0.0

        def progress(held_out: float | None = None) -> Progress:
            rate = max(1.0, self.seen - seen_before) / (time.monotonic() - started)
            return Progress(self.step, self.seen, self.plan.tokens, loss, rate, held_out)

        while self.seen < self.plan.tokens and not stopping():
            loss = self._train_step(stream)
            if time.monotonic() - saved > self.plan.save_every_s:
                yield progress(self.save())
                saved = time.monotonic()
            elif self.step % _REPORT_EVERY == 0:
                yield progress()
        yield progress(self.save())

    def _train_step(self, stream: Iterator[tuple[int, Batch]]) -> float:
        chosen: list[Batch] = []
        while sum(batch.tokens for batch in chosen) < self.plan.step_tokens:
            number, batch = next(stream)
            chosen.append(batch)
            self._next_batch = number + 1
        weight = sum(float(batch.weight.sum()) for batch in chosen)
        total = 0.0
        for batch in chosen:
            loss = self.loss(batch) / weight
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self.seen += sum(batch.tokens for batch in chosen)
        self.step += 1
        for optimizer, lr in zip(self._optimizers, (self.plan.matrix_lr, self.plan.other_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * self.plan.lr_scale(self.seen)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Loss per weighted token on texts that are not trained on."""
        loss = weight = 0.0
        for batch in self._source.held_out():
            loss += float(self.loss(batch))
            weight += float(batch.weight.sum())
        return loss / weight

    def save(self) -> float:
        """Write the model and the trainer's state. Each file is replaced atomically. Returns the held-out loss."""
        fresh = self._out / "fresh"
        self._save(fresh)
        torch.save({
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self._optimizers],
            "step": self.step, "seen": self.seen, "next_batch": self._next_batch, "origin": self._origin,
        }, fresh / STATE_FILE)  # fmt: skip
        for path in fresh.iterdir():
            os.replace(path, self._out / path.name)
        fresh.rmdir()
        return self.held_out_loss()

    def _resume(self) -> None:
        path = self._out / STATE_FILE
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            if state["origin"] != self._origin:
                raise CheckpointError(f"{path} is of another training ({state['origin']}, not {self._origin})")
            self._take(state)
        except (KeyError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as exc:
            raise CheckpointError(f"{path} cannot be resumed from: {exc!r}") from exc

    def _take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seen, self._next_batch = state["step"], state["seen"], state["next_batch"]


def optimizers(model: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings, biases and norms."""

    def is_matrix(name: str, parameter: Tensor) -> bool:
        return parameter.dim() == 2 and "embed" not in name and "lm_head" not in name

    named = list(model.named_parameters())
    matrices = [parameter for name, parameter in named if is_matrix(name, parameter)]
    others = [parameter for name, parameter in named if not is_matrix(name, parameter)]
    return [
        torch.optim.Muon(matrices, lr=plan.matrix_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=plan.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
