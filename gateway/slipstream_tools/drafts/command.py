"""The options and actions of `slipstream drafts`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import export, follow, forget, statistics, training
from slipstream_tools.drafts.new_file import new_file
from slipstream_tools.drafts.record import user
from slipstream_tools.drafts.selection import Selection, nothing_found


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
        choices=tuple(export.FORMATS),
        required=True,
        help="speculators: rows of input_ids and loss_mask; specforge: conversations; jsonl: all columns",
    )
    exporting.add_argument("--output", type=Path, metavar="FILE", help="a new file (default: stdout)")
    training.add_arguments(trainer)
    follow.add_arguments(follower)
    checking.add_argument("--target", required=True, metavar="FOLDER", help="the target's checkpoint folder")
    checking.add_argument("--draft", required=True, metavar="FOLDER", help="the draft's checkpoint folder")
    forgetting.add_argument("--key", metavar="ID", help="public id of an API key, as 'slipstream keys list' shows it")
    forgetting.add_argument("--before", type=_date, metavar="DATE", help="all answers before this day (UTC)")


def run(args: argparse.Namespace) -> int:
    if args.action == "check":
        return training.check_draft(args.target, args.draft, as_json=args.json)
    actions: dict[str, Callable[[CaptureStore, argparse.Namespace], None]] = {
        "list": _list,
        "stats": _stats,
        "export": _export,
        "forget": _forget,
        "train": _train,
        "follow": _follow,
    }
    store = CaptureStore.at(args.store)
    try:
        actions[args.action](store, args)
    except BrokenPipeError:
        raise  # the reader of the output has closed it
    except OSError as exc:
        raise CommandError(f"{args.store}: {exc.strerror or exc}") from exc
    return 0


def _list(store: CaptureStore, args: argparse.Namespace) -> None:
    days = statistics.days(store, store.files(args.pair))
    if not days:
        raise nothing_found(args)
    print(json.dumps(days, indent=2) if args.json else statistics.days_table(days))


def _stats(store: CaptureStore, args: argparse.Namespace) -> None:
    classes = statistics.classes(Selection.of(args).tables(store, statistics.COLUMNS))
    if not classes:
        raise nothing_found(args)
    print(json.dumps(classes, indent=2) if args.json else statistics.classes_table(classes))


def _export(store: CaptureStore, args: argparse.Namespace) -> None:
    """The store gets its note first: an export is on record also if it ends early."""
    selection = Selection.of(args)
    if not any(table.num_rows for table in selection.tables(store, ("request_class",))):
        raise nothing_found(args)
    store.note("export", user=user(), format=args.format, **_chosen(args))
    if args.output is None:
        counts = export.write(selection.tables(store), args.format, sys.stdout)
    else:
        with new_file(args.output) as output:
            counts = export.write(selection.tables(store), args.format, output)
    print(export.summary(counts), file=sys.stderr)


def _train(store: CaptureStore, args: argparse.Namespace) -> None:
    training.check_options(args)
    selection = Selection.of(args)
    training.check_one_target(store, selection, args)
    store.note("train", user=user(), output=str(args.output), **_chosen(args))
    training.train(store, selection, args)


def _follow(store: CaptureStore, args: argparse.Namespace) -> None:
    follow.check_options(args)
    follow.follow(store, args)


def _forget(store: CaptureStore, args: argparse.Namespace) -> None:
    if (args.key is None) == (args.before is None):
        raise CommandError("give --key ID or --before DATE.", exit_code=2)
    before = None if args.before is None else args.before.isoformat()
    store.files(args.pair)  # a wrong name ends here, before the note
    store.note("forget", user=user(), key=args.key, before=before, pair=args.pair)
    done = forget.forget(store, args.pair, key=args.key, before=args.before)
    if done.files:
        what = f"{done.answers} answers in {done.files} files" if args.key else f"{done.files} files"
        print(f"{what} deleted", file=sys.stderr)
    if done.errors:
        raise CommandError("\n".join(done.errors))
    if not done.files:
        raise CommandError(
            f"{args.store} has no captured answers {f'of the key {args.key}' if args.key else f'before {before}'}."
        )


def _chosen(args: argparse.Namespace) -> dict[str, str | None]:
    """The selected answers, for the record."""
    since = None if args.since is None else args.since.isoformat()
    return {"pair": args.pair, "request_class": args.request_class, "since": since}


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-26, got {text!r}") from None
