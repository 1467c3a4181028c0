"""`slipstream train`: trains the classifier on a team's own requests."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from slipstream_core.errors import CommandError, named_os_errors
from slipstream_gateway.decide.classify import default_model, save_model

from slipstream_tools.train.report import as_json, as_markdown
from slipstream_tools.train.rows import read_rows
from slipstream_tools.train.trainer import train

_SHOWN_PROBLEMS = 10


def run(args: argparse.Namespace) -> int:
    if args.report is not None and args.report.suffix not in (".md", ".json"):
        raise CommandError(f"--report {args.report}: the name must end in .md or .json", exit_code=2)
    rows, problems = read_rows(args.requests)
    for problem in problems[:_SHOWN_PROBLEMS]:
        print(f"{args.requests}: {problem}: skipped", file=sys.stderr)
    if problems:
        print(f"{args.requests}: {len(problems)} invalid rows skipped, {len(rows)} used", file=sys.stderr)
    unknown = sorted(set(args.exclude_source) - {row.source for row in rows})
    if unknown:
        raise CommandError(f"--exclude-source {unknown[0]}: the file has no such source", exit_code=2)
    if all(row.source in args.exclude_source for row in rows):
        raise CommandError("--exclude-source leaves no row to train on", exit_code=2)
    if all(row.task is None and row.tokens is None and row.rare is None for row in rows):
        raise CommandError(f"{args.requests}: no row has a task, a length or a rare-answer label", exit_code=2)
    for path in filter(None, (args.out, args.report)):
        _check_writable(path)
    trained = train(rows, default_model, excluded=args.exclude_source, seed=args.seed, progress=_say)
    text = as_markdown(trained)
    with _writing(args.out):
        save_model(trained.model, args.out)
    if args.report is not None:
        with _writing(args.report):
            args.report.write_text(as_json(trained) if args.report.suffix == ".json" else text, encoding="utf-8")
    print(text)
    print(f"wrote {args.out} ({args.out.stat().st_size / 1e6:.2f} MB)")
    return 0


def _check_writable(path: Path) -> None:
    """Checks before the training, which takes minutes. Leaves no file behind. Raises `CommandError`."""
    is_new = not path.exists()
    with _writing(path):
        path.open("ab").close()
        if is_new:
            path.unlink()


def _writing(path: Path) -> AbstractContextManager[None]:
    return named_os_errors(f"{path}: cannot be written", exit_code=2)


def _say(line: str) -> None:
    print(f"slipstream train: {line}", file=sys.stderr)
