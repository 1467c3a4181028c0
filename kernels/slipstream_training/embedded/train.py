"""Trains the embedded target and its draft.

    python -m slipstream_training.embedded.train copier --tokenizer DIR --out COPIER
    python -m slipstream_training.embedded.train stem --tokenizer DIR --init COPIER --out STEM
    python -m slipstream_training.embedded.train target --tokenizer DIR --init STEM --out GROWN
    python -m slipstream_training.embedded.train polish --tokenizer DIR --init GROWN --out DIR
    python -m slipstream_training.embedded.train draft --tokenizer DIR --out BASE
    python -m slipstream_training.embedded.train draft --target DIR --init BASE --out DIR

The target starts with a quarter of its layers. The copier trains on many exercises in copying facts, which a small
model learns last, and the stem on the corpus. The model is then grown to its full depth and trained further (target),
at the end with more of its hardest tasks (polish). The draft first trains on the corpus, which is cheap, and is then
distilled from the finished target.

All runs are seeded. They print step, losses, tokens/s and time left, write a checkpoint every few minutes, and resume
from it when the same command runs again. All six runs together take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from slipstream_engine.embedded.corpus import Task, training_mix
from slipstream_engine.model.config import ModelConfig
from slipstream_engine.model.tensor_files import write_json
from tokenizers import Tokenizer

from slipstream_training.embedded.corpus_batches import Corpus
from slipstream_training.embedded.shapes import DRAFT, STEM, TARGET, grown
from slipstream_training.embedded.train_tokenizer import END, PAD, token_id
from slipstream_training.models.llama import Llama, config_json
from slipstream_training.models.losses import cross_entropy, distillation
from slipstream_training.trainer import Plan, Trainer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
SHAPES = {"copier": STEM, "stem": STEM, "target": TARGET, "polish": TARGET, "draft": DRAFT}
_BATCH_TOKENS = 1536
_MILLION = 1_000_000


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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


def plan_of(which: str, *, distil: bool, tokens: float | None) -> tuple[Plan, int, Mapping[Task, float]]:
    """The parameters of the shipped pair: the plan, what is added to the seed, and the shares of tasks. Target and
    draft use different corpus streams."""
    plans = {
        "copier": Plan(tokens=3_500_000, step_tokens=1024, matrix_lr=3e-3, other_lr=2e-3, final_lr=0.4),
        "stem": Plan(tokens=2_800_000, step_tokens=2048, matrix_lr=2.5e-3, other_lr=1.5e-3, final_lr=0.5),
        "target": Plan(tokens=1_200_000, step_tokens=2048, matrix_lr=1.5e-3, other_lr=1e-3),
        "polish": Plan(tokens=500_000, step_tokens=2048, matrix_lr=1.2e-3, other_lr=8e-4),
        "draft": Plan(tokens=3_000_000, step_tokens=4096, matrix_lr=4e-3, other_lr=3e-3),
        "distilled": Plan(tokens=600_000, step_tokens=2048, matrix_lr=2e-3, other_lr=1.5e-3),
    }
    streams = {"copier": 0, "stem": 1, "target": 4, "polish": 5, "draft": 2, "distilled": 3}
    mixes = {
        "copier": training_mix(2.0),
        "stem": training_mix(0.2),
        "target": training_mix(0.2),
        "polish": training_mix(0.1, {"reply": 4.0, "json": 2.0, "status": 2.0}),
    }
    name = "distilled" if distil else which
    plan = plans[name] if tokens is None else plans[name]._replace(tokens=int(tokens * _MILLION))
    return plan, streams[name], mixes.get(name, training_mix(0.0))


def save(model: Llama, folder: Path, tokenizer: Tokenizer, extras: Path) -> None:
    """Write a checkpoint with the tokenizer's files of the folder `extras`."""
    end, pad = token_id(tokenizer, END), token_id(tokenizer, PAD)
    model.save(folder, config_json(model.config, bos_token_id=None, eos_token_id=end, pad_token_id=pad))
    write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": end, "pad_token_id": pad})
    for name in _TOKENIZER_FILES:
        shutil.copy(extras / name, folder / name)


def _start(config: ModelConfig, init: Path | None) -> Llama:
    if init is None:
        return Llama(config)
    model = Llama.load(init).train()
    return grown(model, config.layers) if model.config.layers < config.layers else model


def main() -> None:
    args = _parse()
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    model = _start(SHAPES[args.which], args.init)
    loss = partial(distillation, Llama.load(args.target)) if args.target else cross_entropy
    plan, stream, mix = plan_of(args.which, distil=args.target is not None, tokens=args.tokens)
    extras = args.target or args.tokenizer
    tokenizer = Tokenizer.from_file(str(extras / "tokenizer.json"))
    source = Corpus(tokenizer, seed=args.seed + stream, max_tokens=_BATCH_TOKENS, mix=mix)
    trainer = Trainer(
        model, partial(loss, model), plan, source, args.out, lambda folder: save(model, folder, tokenizer, extras)
    )
    if trainer.step:
        print(f"resumed at step {trainer.step}, {trainer.seen / 1e6:.2f} M tokens", flush=True)
    for progress in trainer.run():
        print(progress.line(), flush=True)


if __name__ == "__main__":
    main()
