"""Checks a draft before it serves: `python -m slipstream_engine.checks.draft_check --target FOLDER --draft FOLDER`.

Prints one line for each check of the tokenizer, the shapes, the values and the licences, and returns 1 if one has
failed. Drafts are models of the Llama family, EAGLE heads for Slipstream's engine, and what the package `speculators`
trains for vLLM.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from safetensors import SafetensorError, safe_open

from slipstream_engine.checks.speculators_check import check_speculator
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.checkpoint import load_eagle_weights, load_weights
from slipstream_engine.model.config import load_config
from slipstream_engine.model.tensor_files import INDEX, SINGLE, is_eagle_head, tensor_files
from slipstream_engine.preflight import compare
from slipstream_engine.settings import resolve_source
from slipstream_engine.text.tokenizer_files import read_json

Verdict = Literal["ok", "warning", "failed"]
_CHEAP = 0.2  # of the target's parameters: a larger draft rarely pays
_LICENCE = re.compile(r"^license(?:_name)?:\s*(\S.*?)\s*$", re.MULTILINE)
_LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    verdict: Verdict
    message: str


def findings(target: str, draft: str) -> Iterator[Finding]:
    """The results of all checks of the folder `draft` against the folder `target`."""
    of_target, of_draft = resolve_source(target), resolve_source(draft)
    if "speculators_model_type" in read_json(of_draft / "config.json"):
        yield _tried("shapes", lambda: check_speculator(of_target, of_draft))
    else:
        yield _tried("tokenizer", lambda: _tokenizer(target, draft))
        yield _tried("shapes", lambda: _shapes(of_draft))
    yield _tried("values", lambda: _values(of_draft))
    try:
        yield _size(of_target, of_draft)
    except (CheckpointError, SafetensorError) as exc:
        yield Finding("size", "warning", str(exc))
    yield _licence(of_target, of_draft)


def _tried(check: str, run: Callable[[], str]) -> Finding:
    """What `run` says, or why the check has failed."""
    try:
        return Finding(check, "ok", run())
    except (CheckpointError, SafetensorError) as exc:
        return Finding(check, "failed", str(exc))


def _tokenizer(target: str, draft: str) -> str:
    report = compare(target=target, draft=draft)
    if not report.tokenizer_compatible:
        raise CheckpointError(report.message)
    return report.message


def _shapes(folder: Path) -> str:
    import torch

    load = load_eagle_weights if is_eagle_head(folder) else load_weights
    load(folder, load_config(folder), torch.device("cpu"), torch.bfloat16)
    kind = "an EAGLE head" if is_eagle_head(folder) else "a model of the Llama family"
    return f"{kind}, whose tensors have the shapes of config.json"


def _values(folder: Path) -> str:
    """A training that has diverged leaves numbers that are not finite."""
    count = 0
    for name, file in tensor_files(folder):
        with safe_open(file, framework="pt") as shard:
            tensor = shard.get_tensor(name)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{file}: tensor {name!r} has values that are not finite")
        count += 1
    return f"all values of {count} tensors are finite"


def _size(target: Path, draft: Path) -> Finding:
    sizes = [_parameters(folder) for folder in (target, draft)]
    if sizes[0] is None or sizes[1] is None:
        return Finding("size", "warning", "the target's folder has no weights, so the sizes are not compared")
    share = sizes[1] / sizes[0]
    verdict: Verdict = "ok" if share <= _CHEAP else "warning"
    return Finding("size", verdict, f"{sizes[1] / 1e6:.1f} M parameters, {share:.1%} of the target's")


def _parameters(folder: Path) -> int | None:
    if not any((folder / name).is_file() for name in (SINGLE, INDEX)):
        return None
    total = 0
    for name, file in tensor_files(folder):
        with safe_open(file, framework="np") as shard:
            total += math.prod(shard.get_slice(name).get_shape())
    return total


def _licence(target: Path, draft: Path) -> Finding:
    names = [_licence_of(folder) for folder in (target, draft)]
    text = f"{names[0] or 'none found'} for the target, {names[1] or 'none found'} for the draft"
    if names[1] is None:
        text += "; a draft that is trained on a target's answers is under the terms of the target's licence, too"
    return Finding("licence", "ok" if all(names) else "warning", text)


def _licence_of(folder: Path) -> str | None:
    """What the model card says, else the first line of the licence's file."""
    card = _text(folder / "README.md")
    if card.startswith("---") and (found := _LICENCE.search(card.partition("---")[2].partition("\n---")[0])):
        return found[1]
    texts = (_text(folder / name).strip() for name in _LICENCE_FILES)
    return next((text.splitlines()[0].strip() for text in texts if text), None)


def _text(file: Path) -> str:
    """The text of a file, in whatever encoding; empty without one."""
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, 1 if a check has failed, or 2 with one line of error if a folder cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m slipstream_engine.checks.draft_check",
        description="Check a draft against its target.",
        allow_abbrev=False,
    )
    parser.add_argument("--target", required=True, metavar="FOLDER", help="the target's checkpoint folder")
    parser.add_argument("--draft", required=True, metavar="FOLDER", help="the draft's checkpoint folder")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(arguments)
    try:
        found = list(findings(args.target, args.draft))
    except (CheckpointError, OSError, SafetensorError) as exc:
        print(" ".join(str(exc).split()), file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    else:
        print("\n".join(f"{finding.verdict:8} {finding.check:10} {finding.message}" for finding in found))
    return int(any(finding.verdict == "failed" for finding in found))


if __name__ == "__main__":
    sys.exit(main())
