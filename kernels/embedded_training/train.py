"""Trains the embedded target and its draft.

    python -m embedded_training.train copier --tokenizer DIR --out COPIER
    python -m embedded_training.train stem --tokenizer DIR --init COPIER --out STEM
    python -m embedded_training.train target --tokenizer DIR --init STEM --out GROWN
    python -m embedded_training.train polish --tokenizer DIR --init GROWN --out DIR
    python -m embedded_training.train draft --tokenizer DIR --out BASE
    python -m embedded_training.train draft --target DIR --init BASE --out DIR

The target starts with a quarter of its layers. The copier trains on many exercises in copying facts, which a small
model learns last, and the stem on the corpus. The model is then grown to its full depth and trained further (target),
at the end with more of its hardest tasks (polish). The draft first trains on the corpus, which is cheap, and is then
distilled from the finished target.

All runs are seeded. They print step, losses, tokens/s and time left, write a checkpoint every few minutes, and resume
from it when the same command runs again. All six runs together take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from slipstream_engine.embedded.corpus import Task, training_mix
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from embedded_training.batches import Batch, batches
from embedded_training.model import DRAFT, STEM, TARGET, Llama, Shape
from embedded_training.train_tokenizer import END, PAD, token_id

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SHAPES = {"copier": STEM, "stem": STEM, "target": TARGET, "polish": TARGET, "draft": DRAFT}
Loss = Callable[[Llama, Batch], Tensor]  # sum over tokens of weight * loss


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Training parameters of one model. `repeat` and `boost` are those of `training_mix`.

    The learning rate warms up, then falls linearly to the fraction `final_lr` at `tokens`.
    """

    tokens: int
    step_tokens: int
    matrix_lr: float
    other_lr: float
    seed: int
    batch_tokens: int = 1536
    warmup: float = 0.02
    final_lr: float = 0.0
    repeat: float = 0.0
    boost: Mapping[Task, float] | None = None
    clip: float = 1.0
    save_every_s: float = 180.0

    def lr_scale(self, seen: int) -> float:
        done = min(seen / self.tokens, 1.0)
        falling = 1.0 - (1.0 - self.final_lr) * (done - self.warmup) / (1.0 - self.warmup)
        return min(done / self.warmup + 0.02, falling, 1.0)


def cross_entropy(model: Llama, batch: Batch) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch.ids[:, :-1])
    losses = functional.cross_entropy(logits.float().flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    return (losses * batch.weight.flatten()).sum()


def distillation(target: Llama) -> Loss:
    """KL from the target's next-token distribution to the draft's, weighted as in training."""

    def loss(model: Llama, batch: Batch) -> Tensor:
        ids = batch.ids[:, :-1]
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = functional.log_softmax(target(ids).float(), dim=-1)
            given = functional.log_softmax(model(ids).float(), dim=-1)
        divergence = functional.kl_div(given, wanted, reduction="none", log_target=True).sum(-1)  # [B, T - 1]
        return (divergence * batch.weight).sum()

    return loss


def optimizers(model: Llama, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=plan.matrix_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=plan.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


class Trainer:
    """One training run and its checkpoint, `out/trainer.pt`."""

    def __init__(self, model: Llama, tokenizer: Tokenizer, loss: Loss, plan: Plan, out: Path, extras: Path) -> None:
        self.model, self.tokenizer, self.loss, self.plan = model, tokenizer, loss, plan
        self._out, self._extras = out, extras
        self._optimizers = optimizers(model, plan)
        self._step, self._seen, self._next_batch = 0, 0, 0
        self._resume()

    def run(self) -> None:
        stream = batches(
            self.tokenizer, seed=self.plan.seed, max_tokens=self.plan.batch_tokens, start=self._next_batch,
            mix=training_mix(self.plan.repeat, self.plan.boost),
        )  # fmt: skip
        started, seen_before, saved = time.monotonic(), self._seen, time.monotonic()
        while self._seen < self.plan.tokens:
            loss = self._train_step(stream)
            if self._step % 25 == 0:
                rate = (self._seen - seen_before) / (time.monotonic() - started)
                left_s = (self.plan.tokens - self._seen) / rate
                print(
                    f"step {self._step}  loss {loss:.4f}  {self._seen / 1e6:.2f} M tokens  "
                    f"{rate:.0f} tokens/s  left {left_s / 60:.1f} min",
                    flush=True,
                )
            if time.monotonic() - saved > self.plan.save_every_s:
                self.save()
                saved = time.monotonic()
        self.save()

    def _train_step(self, stream: Iterator[tuple[int, Batch]]) -> float:
        chosen: list[Batch] = []
        while sum(batch.tokens for batch in chosen) < self.plan.step_tokens:
            number, batch = next(stream)
            chosen.append(batch)
            self._next_batch = number + 1
        weight = sum(float(batch.weight.sum()) for batch in chosen)
        total = 0.0
        for batch in chosen:
            loss = self.loss(self.model, batch) / weight
            loss.backward()
            total += float(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self._seen += sum(batch.tokens for batch in chosen)
        self._step += 1
        for optimizer, lr in zip(self._optimizers, (self.plan.matrix_lr, self.plan.other_lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * self.plan.lr_scale(self._seen)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total

    def held_out_loss(self, count: int = 12) -> float:
        """Loss per weighted token on held-out examples."""
        stream = batches(self.tokenizer, seed=self.plan.seed, max_tokens=self.plan.batch_tokens, split="held_out")
        chosen = [batch for _, batch in itertools.islice(stream, count)]
        with torch.no_grad():
            total = sum(float(self.loss(self.model, batch)) for batch in chosen)
        return total / sum(float(batch.weight.sum()) for batch in chosen)

    def save(self) -> None:
        """Write the trainer's state and the checkpoint folder. Each file is replaced atomically."""
        print(f"step {self._step}  held-out loss {self.held_out_loss():.4f}", flush=True)
        fresh = self._out / "fresh"
        self.model.save(fresh, pad_id=token_id(self.tokenizer, PAD), eos_id=token_id(self.tokenizer, END))
        for name in _TOKENIZER_FILES:
            shutil.copy(self._extras / name, fresh / name)
        torch.save({
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self._optimizers],
            "step": self._step, "seen": self._seen, "next_batch": self._next_batch,
        }, fresh / "trainer.pt")  # fmt: skip
        for path in fresh.iterdir():
            os.replace(path, self._out / path.name)
        fresh.rmdir()

    def _resume(self) -> None:
        path = self._out / "trainer.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._step, self._seen, self._next_batch = state["step"], state["seen"], state["next_batch"]
        print(f"resumed at step {self._step}, {self._seen / 1e6:.2f} M tokens", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=tuple(SHAPES))
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder, also resumed from")
    parser.add_argument("--tokenizer", type=Path, help="folder of train_tokenizer, to learn from the corpus")
    parser.add_argument("--target", type=Path, help="finished target, to distil a draft from it")
    parser.add_argument(
        "--init", type=Path, help="checkpoint folder to start from; a stem is grown to the target's depth"
    )
    parser.add_argument("--tokens", type=float, help="training tokens in millions; may be changed on resume")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    if (args.tokenizer is None) == (args.target is None) or (args.which != "draft" and args.target):
        parser.error("give --tokenizer, or for a draft --target")
    return args


def _plan(which: str, *, distil: bool, tokens: float | None, seed: int) -> Plan:
    """The parameters of the shipped pair. Target and draft use different corpus streams."""
    if which == "copier":
        plan = Plan(tokens=3_500_000, step_tokens=1024, matrix_lr=3e-3, other_lr=2e-3, seed=seed, final_lr=0.4,
                    repeat=2.0)  # fmt: skip
    elif which == "stem":
        plan = Plan(tokens=2_800_000, step_tokens=2048, matrix_lr=2.5e-3, other_lr=1.5e-3, seed=seed + 1,
                    final_lr=0.5, repeat=0.2)  # fmt: skip
    elif which == "target":
        plan = Plan(tokens=1_200_000, step_tokens=2048, matrix_lr=1.5e-3, other_lr=1e-3, seed=seed + 4, repeat=0.2)
    elif which == "polish":
        plan = Plan(tokens=500_000, step_tokens=2048, matrix_lr=1.2e-3, other_lr=8e-4, seed=seed + 5, repeat=0.1,
                    boost={"reply": 4.0, "json": 2.0, "status": 2.0})  # fmt: skip
    elif distil:
        plan = Plan(tokens=600_000, step_tokens=2048, matrix_lr=2e-3, other_lr=1.5e-3, seed=seed + 3)
    else:
        plan = Plan(tokens=3_000_000, step_tokens=4096, matrix_lr=4e-3, other_lr=3e-3, seed=seed + 2)
    return replace(plan, tokens=int(1e6 * tokens)) if tokens else plan


def _start(shape: Shape, init: Path | None) -> Llama:
    if init is None:
        return Llama(shape)
    model = Llama.load(init).train()
    return model.grown(shape.layers) if model.shape.layers < shape.layers else model


def main() -> None:
    args = _parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model = _start(SHAPES[args.which], args.init)
    loss = distillation(Llama.load(args.target)) if args.target else cross_entropy
    plan = _plan(args.which, distil=args.target is not None, tokens=args.tokens, seed=args.seed)
    extras = args.target or args.tokenizer
    tokenizer = Tokenizer.from_file(str(extras / "tokenizer.json"))
    Trainer(model, tokenizer, loss, plan, args.out, extras).run()


if __name__ == "__main__":
    main()
