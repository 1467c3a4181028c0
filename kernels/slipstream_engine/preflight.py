"""Checks a draft against its target before any weights are loaded: `python -m slipstream_engine.preflight`.

Reads only configurations and tokenizers and compares them as the engine does at load. It is meant for an init container
of the engine: its report is the termination message, which Kubernetes truncates at 4,096 bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slipstream_engine.drafts.compatibility import check_draft, check_eagle_head
from slipstream_engine.errors import CheckpointError, DraftMismatchError
from slipstream_engine.model.config import load_config
from slipstream_engine.model.tensor_files import is_eagle_head
from slipstream_engine.settings import resolve_source, resolve_tokenizer
from slipstream_engine.text.tokenizer import Tokenizer

MAX_REPORT_BYTES = 4000


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Result of the check; `message` names the first difference."""

    tokenizer_compatible: bool
    message: str


def compare(
    *, target: str, draft: str, target_tokenizer: str | None = None, draft_tokenizer: str | None = None
) -> Report:
    """The report on two checkpoints, named as in `EngineSettings`.

    Raises:
        CheckpointError: a folder cannot be read.
    """
    of_target, target_rows = _read(target, target_tokenizer)
    try:
        if is_eagle_head(folder := resolve_source(draft)):
            check_eagle_head(load_config(resolve_source(target)), load_config(folder))
        else:
            of_draft, draft_rows = _read(draft, draft_tokenizer)
            check_draft(of_target, of_draft, target_rows, draft_rows)
    except DraftMismatchError as exc:
        return Report(tokenizer_compatible=False, message=str(exc))
    message = f"the draft has the target's tokenizer: the same {len(of_target.vocab)} tokens"
    return Report(tokenizer_compatible=True, message=message)


def compare_all(
    *,
    target: str,
    draft: str,
    alternatives: Sequence[str] = (),
    target_tokenizer: str | None = None,
    draft_tokenizer: str | None = None,
) -> Report:
    """As `compare`; of several drafts, the report on the first one that does not fit."""
    report = compare(target=target, draft=draft, target_tokenizer=target_tokenizer, draft_tokenizer=draft_tokenizer)
    for source in alternatives:
        if not report.tokenizer_compatible:
            break
        other = compare(target=target, draft=source, target_tokenizer=target_tokenizer)
        if not other.tokenizer_compatible:
            report = msgspec.structs.replace(other, message=f"the alternative {source}: {other.message}")
    return report


def encode(report: Report) -> bytes:
    """`report` as JSON of at most `MAX_REPORT_BYTES`; a longer message is truncated."""
    encoded = msgspec.json.encode(report)
    while len(encoded) > MAX_REPORT_BYTES:
        shorter = report.message[: len(report.message) * 9 // 10] + "…"
        report = msgspec.structs.replace(report, message=shorter)
        encoded = msgspec.json.encode(report)
    return encoded


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 with any report, or 1 with one line of error if a checkpoint cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        report = encode(
            compare_all(
                target=options.target,
                draft=options.draft,
                alternatives=options.alternative,
                target_tokenizer=options.target_tokenizer,
                draft_tokenizer=options.draft_tokenizer,
            )
        )
    except CheckpointError as exc:
        line = " ".join(str(exc).split())
        print(line, file=sys.stderr)
        return max(1, _write(options.report, line.encode()[:MAX_REPORT_BYTES]))
    print(report.decode())
    return _write(options.report, report)


def _read(source: str, tokenizer: str | None) -> tuple[Tokenizer, int]:
    """A checkpoint's tokenizer and the rows of its output embedding."""
    folder = resolve_source(source)
    rows = load_config(folder).vocab_rows
    return Tokenizer.load(resolve_tokenizer(tokenizer, folder), checkpoint=folder), rows


def _write(file: Path | None, content: bytes) -> int:
    if file is None:
        return 0
    try:
        file.write_bytes(content)
    except OSError as exc:
        print(f"--report: cannot write {file}: {exc.strerror}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slipstream_engine.preflight",
        description="Compare a draft's tokenizer with its target's, without loading weights.",
        allow_abbrev=False,
    )
    parser.add_argument("--target", required=True, help="the target's checkpoint folder")
    parser.add_argument("--target-tokenizer", help="folder of the target's tokenizer (default: the checkpoint)")
    parser.add_argument("--draft", required=True, help="the draft's checkpoint folder")
    parser.add_argument("--draft-tokenizer", help="folder of the draft's tokenizer (default: the checkpoint)")
    parser.add_argument("--alternative", action="append", default=[], help="the folder of a further draft; repeatable")
    parser.add_argument("--report", type=Path, help="also write the report, or the line of error, to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
