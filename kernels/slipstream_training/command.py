"""The command line of `python -m slipstream_training`."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

import torch
from slipstream_engine.errors import CheckpointError, DraftMismatchError
from slipstream_engine.model.config import load_config
from slipstream_engine.model.model import Model
from slipstream_engine.settings import resolve_source
from slipstream_engine.text.tokenizer import Tokenizer

from slipstream_training.answers import MOST_TOKENS, Answers, Rows, read_rows
from slipstream_training.models.eagle_draft import EagleDraft
from slipstream_training.models.llama_draft import start_from, start_new
from slipstream_training.models.precision import training_dtype
from slipstream_training.run import BATCH_TOKENS, WORK, Draft, DraftRun
from slipstream_training.trainer import Progress

EAGLE = "eagle"
FEWEST_ANSWERS = 40
_BAR, _LINE_EVERY_S = 30, 10.0
_SIZE = re.compile(r"([1-9]\d?)x([1-9]\d{1,4})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train. Returns 0, or 1 with one line of error, or 130 after an interruption, whose state is kept."""
    args = _parser().parse_args(arguments)
    stopped = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped.handle)
    try:
        return _train(args, stopped)
    except torch.OutOfMemoryError as exc:
        error: Exception = CheckpointError(f"out of memory: {exc}")
    except (CheckpointError, DraftMismatchError, OSError) as exc:
        error = exc
    print(" ".join(str(error).split()), file=sys.stderr)
    return 1


class _Stop:
    """Set by a signal. The step that runs then is finished, and the state is kept."""

    def __init__(self) -> None:
        self.is_set = False

    def handle(self, _signal: int, _frame: object) -> None:
        self.is_set = True


def _train(args: argparse.Namespace, stopped: _Stop) -> int:
    if not hasattr(torch.optim, "Muon"):
        raise CheckpointError(f"training needs PyTorch 2.9 or later, and this is {torch.__version__}")
    torch.manual_seed(args.seed)
    target = resolve_source(args.target)
    device = _device(args.device)
    draft = _start(args, target, device)
    answers = _answers(args, target, draft)
    started = args.draft or args.new
    run = DraftRun(
        draft,
        answers,
        args.output,
        passes=args.passes,
        draft_tokens=args.draft_tokens,
        device=device,
        origin=f"{started}, {args.passes:g} passes, seed {args.seed}",
    )
    if run.trainer.step:
        _say(f"resumes at step {run.trainer.step}, {run.trainer.seen / 1e6:.2f} M tokens")
    _show(run.steps(lambda: stopped.is_set), sys.stderr)
    if not run.is_done:
        _say(f"interrupted: the same command goes on at step {run.trainer.step}; {args.output / WORK} has its state")
        return 130
    after = run.finish(target=args.target, draft=started, only=args.only)
    before_rate, after_rate = (one.tokens_per_step for one in (run.before, after))
    _say(
        f"tokens per step with {args.draft_tokens} draft tokens, on {len(answers.unseen)} held-out answers: "
        f"{before_rate:.2f} before, {after_rate:.2f} after"
    )
    if after_rate <= before_rate:
        _say("The draft has not become better. More answers, more passes or a larger draft may help.")
    return 0


def _start(args: argparse.Namespace, target: Path, device: torch.device) -> Draft:
    if args.draft is not None:
        return start_from(resolve_source(args.draft), target)
    if args.new == EAGLE:
        dtype = training_dtype(device.type)
        return EagleDraft(Model.load(target, device=device, dtype=dtype, context_tokens=MOST_TOKENS))
    found = _SIZE.fullmatch(args.new)
    layers, hidden = (int(part) for part in found.groups()) if found else (0, 1)
    if hidden % 32:
        raise CheckpointError(
            f"--new is LAYERSxHIDDEN, with a multiple of 32 for HIDDEN, such as 1x192; got {args.new!r}"
        )
    return start_new(target, layers=layers, hidden=hidden)


def _answers(args: argparse.Namespace, target: Path, draft: Draft) -> Answers:
    vocabulary = min(load_config(target).vocab_rows, draft.config.vocab_rows)
    context = min(draft.config.context_tokens, MOST_TOKENS)
    if args.answers == "-":
        found = read_rows(sys.stdin.buffer, context_tokens=context, vocabulary=vocabulary)
    else:
        with open(args.answers, "rb") as file:
            found = read_rows(file, context_tokens=context, vocabulary=vocabulary)
    if len(found.rows) < FEWEST_ANSWERS:
        raise CheckpointError(f"{_counted(found)}: training needs at least {FEWEST_ANSWERS}")
    pad_id = Tokenizer.load(target, checkpoint=target).pad_id or 0  # any id: padding has no weight
    answers = Answers(found.rows, seed=args.seed, max_tokens=BATCH_TOKENS, pad_id=pad_id)
    if not answers.trained:  # a row is held out with all that are equal to it
        raise CheckpointError(f"{_counted(found)}, all of them equal: training needs different ones")
    _say(f"{_counted(found)}, {len(answers.unseen)} of them held out; {answers.tokens / 1e6:.2f} M tokens")
    return answers


def _counted(found: Rows) -> str:
    left_out = "".join(f", {count} left out {cause}" for cause, count in sorted(found.left_out.items()))
    return f"{len(found.rows)} answers{left_out}"


def _show(steps: Iterable[Progress], output: TextIO) -> None:
    """A bar on a terminal, else a line every few seconds."""
    shown_s = 0.0
    for progress in steps:
        if output.isatty():
            share = min(1.0, progress.seen / progress.tokens)
            bar = ("#" * int(_BAR * share)).ljust(_BAR, ".")
            output.write(f"\r[{bar}] {share:4.0%}  {progress.line()} ")
        elif progress.held_out is not None or time.monotonic() - shown_s > _LINE_EVERY_S:
            output.write(progress.line() + "\n")
            shown_s = time.monotonic()
        output.flush()
    if output.isatty():
        output.write("\n")


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise CheckpointError("--device is cuda, but PyTorch found no CUDA device")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"expected a number above 0, at most 1000, got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slipstream_training",
        description="Train a draft on a target's answers.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--answers", required=True, metavar="FILE", help="JSON lines of input_ids and loss_mask; - reads stdin"
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the trained draft; resumes there")
    parser.add_argument("--target", required=True, metavar="FOLDER", help="the target: its tokenizer and configuration")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--draft", metavar="FOLDER", help="the draft to start from")
    start.add_argument(
        "--new", metavar="LAYERSxHIDDEN", help=f"start a new draft, such as 1x192, or {EAGLE}: an EAGLE head"
    )
    parser.add_argument(
        "--only", default="", metavar="CLASS", help="the class of all these answers, for the draft's record"
    )
    parser.add_argument("--passes", type=_positive, default=3.0, help="how often each answer is read (default: 3)")
    parser.add_argument("--draft-tokens", type=int, default=6, help="draft length of the reported tokens per step")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=17)
    return parser
