"""The options and actions of `slipstream drafts`. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from slipstream_core.environment import user
from slipstream_core.errors import CommandError
from slipstream_gateway.capture.store import CaptureStore

from slipstream_tools.drafts import export, follow, forget, statistics, training
from slipstream_tools.drafts.new_file import new_file
from slipstream_tools.drafts.selection import Selection, nothing_found


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
