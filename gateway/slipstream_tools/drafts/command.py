"""The options and actions of `slipstream drafts`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import export, forget, statistics
from slipstream_tools.drafts.selection import Selection, nothing_found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the captured answers by pair and day")
    stats = actions.add_parser("stats", help="tokens and acceptance by class, with the positions where drafts fail")
    exporting = actions.add_parser("export", help="write training data")
    forgetting = actions.add_parser("forget", help="delete the answers of an API key, or all before a day")
    for action in (listing, stats, exporting, forgetting):
        action.add_argument(
            "--store",
            required=True,
            metavar="FOLDER|URL",
            help="the store of the gateways' --capture-store: a folder, or s3://BUCKET/PREFIX",
        )
        action.add_argument("--pair", metavar="[NAMESPACE/]NAME", help="only answers of this ModelPair")
    for action in (listing, stats):
        action.add_argument("--json", action="store_true", help="as JSON")
    for action in (stats, exporting):
        action.add_argument("--class", dest="request_class", metavar="CLASS", help="only this task, or task/length")
        action.add_argument("--since", type=_date, metavar="DATE", help="only answers of this day (UTC) or later")
    exporting.add_argument(
        "--format",
        choices=tuple(export.FORMATS),
        required=True,
        help="speculators: rows of input_ids and loss_mask; specforge: conversations; jsonl: all columns",
    )
    exporting.add_argument("--output", type=Path, metavar="FILE", help="a new file (default: stdout)")
    forgetting.add_argument("--key", metavar="ID", help="public id of an API key, as 'slipstream keys list' shows it")
    forgetting.add_argument("--before", type=_date, metavar="DATE", help="all answers before this day (UTC)")


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[CaptureStore, argparse.Namespace], None]] = {
        "list": _list,
        "stats": _stats,
        "export": _export,
        "forget": _forget,
    }
    store = CaptureStore.at(args.store)
    try:
        actions[args.action](store, args)
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
    with ExitStack() as stack:
        output = sys.stdout
        if args.output is not None:
            try:
                output = stack.enter_context(args.output.open("x", encoding="utf-8"))
            except OSError as exc:
                raise CommandError(f"{args.output}: {exc.strerror or exc}") from exc
        counts = export.write(Selection.of(args).tables(store), args.format, output)
    if not counts.written and not counts.left_out:
        raise nothing_found(args)
    print(export.summary(counts), file=sys.stderr)
    store.note("export", format=args.format, pair=args.pair, request_class=args.request_class, answers=counts.written)


def _forget(store: CaptureStore, args: argparse.Namespace) -> None:
    if (args.key is None) == (args.before is None):
        raise CommandError("give --key ID or --before DATE.", exit_code=2)
    deleted = forget.forget(store, args.pair, key=args.key, before=args.before)
    before = None if args.before is None else args.before.isoformat()
    store.note("forget", key=args.key, before=before, pair=args.pair, answers=deleted)
    print(f"{deleted} answers deleted", file=sys.stderr)


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a day such as 2026-11-26, got {text!r}") from None
