"""Trains an EAGLE head on the answers of `eagle_training.answers`.

    python -m eagle_training.train --target DIR --answers DIR --out DIR

It learns the target's features and its distribution over the most frequent tokens. The run is seeded, prints the share
of held-out draft tokens that equal the target's choice for each position of a draft, writes the head every few minutes
and at the end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from slipstream_engine.config import ModelConfig, RopeConfig, load_config
from slipstream_engine.draft_training.llama import llama_config
from slipstream_engine.draft_training.precision import mixed_precision
from torch import Tensor, nn
from torch.nn import functional

from eagle_training.head import Head, Run

_PROMPT_WEIGHT = 0.1  # of a prompt's tokens: what a user writes is never drafted
_LATER = 0.8  # weight of each draft position, relative to the one before
_FEATURE_WEIGHT = 0.3
_HELD_OUT, _HELD_OUT_SHARE = 128, 0.2  # at most so many answers, and this share of them
_BATCH_TOKENS = 1536


@dataclass(frozen=True)
class Text:
    """A prompt with its answer [T], and the target's features [T - 1, hidden]."""

    ids: Tensor
    prompt_tokens: int
    features: Tensor


class Batch(NamedTuple):
    """`ids` [B, T] and `features` [B, T, hidden] of the same tokens; `weight` [B, T] of what follows each token."""

    ids: Tensor
    features: Tensor
    weight: Tensor


class Frozen(NamedTuple):
    """What the target gives: its input embedding [vocab, hidden], and the rows of its output embedding that the head
    proposes [proposed, hidden]."""

    embedding: Tensor
    proposed: Tensor


def read_answers(folder: Path) -> list[Text]:
    """The answers of a folder, in the order in which they were written."""
    texts = []
    for file in sorted(folder.glob("*.pt")):
        read = torch.load(file, weights_only=True)
        texts += [Text(*one) for one in zip(read["ids"], read["prompt_tokens"], read["features"], strict=True)]
    return texts


def frequent_tokens(texts: list[Text], count: int) -> list[int]:
    """The `count` most frequent token ids of the answers, ascending."""
    counts = Counter(token for text in texts for token in text.ids[text.prompt_tokens :].tolist())
    chosen = [token for token, _ in counts.most_common(count)]
    covered = sum(counts[token] for token in chosen) / counts.total()
    print(f"{len(chosen)} of {len(counts)} tokens are {100 * covered:.2f} % of the answers", flush=True)
    return sorted(chosen)


def batches(texts: list[Text], rng: random.Random) -> Iterator[Batch]:
    """One pass over `texts`, in batches of similar lengths."""
    pool = sorted(texts, key=lambda text: len(text.ids) + rng.random() * 16)
    groups: list[list[Text]] = [[]]
    for text in pool:
        if groups[-1] and (len(groups[-1]) + 1) * len(text.ids) > _BATCH_TOKENS:
            groups.append([])
        groups[-1].append(text)
    rng.shuffle(groups)
    yield from map(_batch, groups)


def _batch(texts: list[Text]) -> Batch:
    length = max(len(text.features) for text in texts)
    ids = torch.zeros(len(texts), length, dtype=torch.int64)
    features = torch.zeros(len(texts), length, texts[0].features.shape[1])
    weight = torch.zeros(len(texts), length)
    for row, text in enumerate(texts):
        known = len(text.features)
        ids[row, :known], features[row, :known] = text.ids[:known], text.features
        weight[row, :known] = _PROMPT_WEIGHT
        weight[row, text.prompt_tokens - 1 : known] = 1.0
    return Batch(ids, features, weight)


class Outcome(NamedTuple):
    """The loss, and for each draft position the number of tokens of answers, and of those that are chosen as by the
    target (among the proposed tokens)."""

    loss: Tensor
    equal: list[float]
    tokens: list[float]


def outcome(head: Head, frozen: Frozen, batch: Batch, depth: int) -> Outcome:
    """Run `head` as for drafts of `depth` tokens at each token of `batch`."""
    embedded = functional.embedding(batch.ids[:, 1:], frozen.embedding)
    wanted, weight = batch.features[:, 1:], batch.weight[:, 1:]
    features, runs = batch.features[:, :-1], list[Run]()
    loss, equal, tokens = torch.zeros(()), [], []
    with mixed_precision("cpu"):
        teacher = functional.log_softmax(functional.linear(wanted, frozen.proposed).float(), dim=-1)
        for position in range(depth):
            predicted, run = head(embedded, features, runs)
            runs.append(run)
            given = functional.log_softmax(functional.linear(predicted, frozen.proposed).float(), dim=-1)
            divergence = functional.kl_div(given, teacher, reduction="none", log_target=True).sum(-1)
            distance = functional.smooth_l1_loss(predicted.float(), wanted, reduction="none").mean(-1)
            used = weight.clone()
            used[:, :position] = 0.0
            loss = loss + _LATER**position * ((divergence + _FEATURE_WEIGHT * distance) * used).sum() / used.sum()
            answers = used == 1.0
            equal.append(float((given.argmax(-1) == teacher.argmax(-1))[answers].sum()))
            tokens.append(float(answers.sum()))
            features = functional.pad(predicted, (0, 0, 1, 0))[:, :-1]
    return Outcome(loss, equal, tokens)


class Training:
    """One training run. The learning rates warm up, then fall linearly to zero after `epochs`."""

    def __init__(self, head: Head, frozen: Frozen, texts: list[Text], *, epochs: float, depth: int, seed: int) -> None:
        self._head, self._frozen, self._depth = head, frozen, depth
        self._rng = random.Random(seed)
        held_out = min(_HELD_OUT, int(_HELD_OUT_SHARE * len(texts)))
        self._texts, self._held_out = texts[held_out:], texts[:held_out]
        self.total = int(epochs * sum(len(text.ids) for text in self._texts))
        self.seen = 0
        matrices = [p for p in head.parameters() if p.dim() == 2]
        others = [p for p in head.parameters() if p.dim() != 2]
        self._optimizers = [
            (torch.optim.Muon(matrices, lr=1.0, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"), 4e-3),
            (torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0), 1e-3),
        ]

    def steps(self) -> Iterator[Outcome]:
        """Train; each step's outcome."""
        while self.seen < self.total:
            for batch in batches(self._texts, self._rng):
                found = outcome(self._head, self._frozen, batch, self._depth)
                found.loss.backward()
                nn.utils.clip_grad_norm_(self._head.parameters(), 1.0)
                self.seen += int((batch.weight > 0).sum())
                self._update()
                yield found
                if self.seen >= self.total:
                    return

    def _update(self) -> None:
        done = self.seen / self.total
        scale = max(0.0, min(done / 0.02 + 0.02, 1.0 - done))
        for optimizer, lr in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def held_out(self) -> list[float]:
        """The share of the held-out answers' tokens that are chosen as by the target, for each draft position."""
        found = [
            outcome(self._head, self._frozen, batch, self._depth) for batch in batches(self._held_out, random.Random(0))
        ]
        return [sum(one.equal[at] for one in found) / sum(one.tokens[at] for one in found) for at in range(self._depth)]


def _config(folder: Path) -> ModelConfig:
    """A head for the target in `folder`: one layer of its dimensions."""
    target = load_config(folder)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="checkpoint folder of the target")
    parser.add_argument("--answers", type=Path, required=True, help="folder of eagle_training.answers")
    parser.add_argument("--out", type=Path, required=True, help="folder of the head")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--depth", type=int, default=3, help="draft tokens that are trained together")
    parser.add_argument("--proposed", type=int, default=8192, help="number of tokens that the head can propose")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    texts = read_answers(args.answers)
    token_ids = frequent_tokens(texts, args.proposed)
    with safe_open(args.target / "model.safetensors", framework="pt") as file:
        embedding = file.get_tensor("model.embed_tokens.weight").float()
    head = Head(_config(args.target))
    run = Training(
        head, Frozen(embedding, embedding[token_ids]), texts, epochs=args.epochs, depth=args.depth, seed=args.seed
    )
    started = saved = time.monotonic()
    for number, found in enumerate(run.steps(), 1):
        if number % 25 == 0:
            rate = run.seen / (time.monotonic() - started)
            left_min = (run.total - run.seen) / rate / 60
            loss = float(found.loss.detach())
            print(f"step {number}  loss {loss:.3f}  {rate:.0f} tokens/s  left {left_min:.1f} min", flush=True)
        if time.monotonic() - saved > 180 or run.seen >= run.total:
            shares = " ".join(f"{share:.3f}" for share in run.held_out())
            print(f"step {number}  held out: {shares}", flush=True)
            head.save(args.out, token_ids)
            saved = time.monotonic()


if __name__ == "__main__":
    main()
