"""The options of `slipstream drafts` and its actions."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date
from pathlib import Path

from slipstream_tools.drafts.recipes import METHODS

EXPORT_FORMATS = ("speculators", "specforge", "jsonl")
LLAMA = "llama"
"""The method that trains a small model for Slipstream's engine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the captured answers by pair and day")
    stats = actions.add_parser("stats", help="tokens and acceptance by class, with the positions where drafts fail")
    exporting = actions.add_parser("export", help="write training data")
    forgetting = actions.add_parser("forget", help="delete the answers of an API key, or all before a day")
    trainer = actions.add_parser("train", help="train a draft for Slipstream's engine on captured answers")
    checking = actions.add_parser("check", help="check a draft's tokenizer, shapes, values and licence")
    follower = actions.add_parser("follow", help="watch for classes whose draft has become worse, and train the next")
    for action in (listing, stats, exporting, forgetting, trainer, follower):
        action.add_argument(
            "--store",
            required=True,
            metavar="FOLDER|URL",
            help="the store of the gateways' --capture-store: a folder, or s3://BUCKET/PREFIX",
        )
        action.add_argument("--pair", metavar="[NAMESPACE/]NAME", help="only answers of this ModelPair")
    for action in (listing, stats, checking):
        action.add_argument("--json", action="store_true", help="as JSON")
    for action in (stats, exporting, trainer, follower):
        action.add_argument("--class", dest="request_class", metavar="CLASS", help="only this task, or task/length")
        action.add_argument("--since", type=_date, metavar="DATE", help="only answers of this day (UTC) or later")
    exporting.add_argument(
        "--format",
        choices=EXPORT_FORMATS,
        required=True,
        help="speculators: rows of input_ids and loss_mask; specforge: conversations; jsonl: all columns",
    )
    exporting.add_argument("--output", type=Path, metavar="FILE", help="a new file (default: stdout)")
    _add_train(trainer)
    _add_follow(follower)
    checking.add_argument("--target", required=True, metavar="FOLDER", help="the target's checkpoint folder")
    checking.add_argument("--draft", required=True, metavar="FOLDER", help="the draft's checkpoint folder")
    forgetting.add_argument("--key", metavar="ID", help="public id of an API key, as 'slipstream keys list' shows it")
    forgetting.add_argument("--before", type=_date, metavar="DATE", help="all answers before this day (UTC)")


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-26, got {text!r}") from None


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_training(parser)
    parser.add_argument(
        "--method",
        choices=(LLAMA, *METHODS),
        default=LLAMA,
        help="llama (default): a small model for Slipstream's engine; others: write the commands with which the "
        "package speculators trains a draft for vLLM",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="the trained draft; resumes there")


def _add_training(parser: argparse.ArgumentParser, when: str = "") -> None:
    """The options of one training. `when`, which begins their help, says when they are for."""
    parser.add_argument(
        "--target", required=not when, metavar="FOLDER", help=f"{when}the target: its tokenizer and configuration"
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--draft", metavar="FOLDER", help=f"{when}the draft to start from")
    start.add_argument("--new", metavar="LAYERSxHIDDEN", help=f"{when}start a new draft, such as 1x192")
    parser.add_argument(
        "--passes", type=_up_to(1000), default=3, metavar="N", help=f"{when}how often each answer is read (default: 3)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=f"{when}default: auto")


def _add_follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for events and drafts: the pair's draft.candidates",
    )
    parser.add_argument("--train", action="store_true", help="train a draft for a class whose draft has become worse")
    _add_training(parser, "with --train: ")
    parser.add_argument(
        "--answers",
        type=_up_to(1_000_000),
        default=2000,
        metavar="N",
        help="with --train: number of answers for the first training of a class (default: 2000)",
    )
    parser.add_argument(
        "--interval",
        type=_up_to(1_000_000),
        default=30,
        metavar="S",
        help="seconds between two reads of the store (default: 30)",
    )
    parser.add_argument("--once", action="store_true", help="read the store once, and end")


def _up_to(most: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {most}, got {text!r}")
        return int(text)

    return count
