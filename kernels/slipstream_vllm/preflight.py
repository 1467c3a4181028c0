"""Compares a draft model's tokenizer with its target's: `python3 -m slipstream_vllm.preflight`.

Reads configurations and tokenizers, no weights, by the `transformers` of vLLM's environment; vLLM is not imported. It
is meant for an init container of a server. Its report is the termination message, which Kubernetes truncates at 4,096
bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAX_MESSAGE_CHARS = 800


class Report(NamedTuple):
    """Result of the check; None: the tokenizers could not be compared. `message` names the first difference."""

    tokenizer_compatible: bool | None
    message: str

    def encode(self) -> str:
        shown = self.message[:MAX_MESSAGE_CHARS]
        return json.dumps({"tokenizerCompatible": self.tokenizer_compatible, "message": shown})


def compare(target: Path, draft: Path, tokenizer: Path) -> Report:
    """The report on two checkpoints; `tokenizer` is the target's folder with it.

    vLLM compares the sizes of their output embeddings after it has loaded them, and their tokenizers never. A token
    that only one of the two has does no harm: it is not proposed, or not accepted.
    """
    try:
        rows = _vocab_size(target), _vocab_size(draft)
        of_target, of_draft = _tokens(tokenizer), _tokens(draft)
    except Exception as exc:  # a tokenizer that needs its own code, or of another form: libraries raise bare exceptions
        return Report(None, f"the tokenizers could not be compared: {' '.join(str(exc).split())}")
    if None not in rows and rows[0] != rows[1]:
        return Report(False, f"vLLM needs equal vocab_size: it is {rows[0]} in the target and {rows[1]} in the draft")
    differing = sorted(token for token, text in of_draft.items() if of_target.get(token, text) != text)
    if differing:
        first = differing[0]
        return Report(
            False,
            f"{len(differing)} token ids of the draft mean other tokens in the target; first, id {first}: "
            f"{of_target[first]!r} in the target, {of_draft[first]!r} in the draft",
        )
    same, alone = len(of_draft.keys() & of_target.keys()), len(of_draft.keys() ^ of_target.keys())
    more = f", and {alone} that only one of them has" if alone else ""
    return Report(True, f"the draft has the target's tokenizer: the same {same} tokens{more}")


def _vocab_size(folder: Path) -> int | None:
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    return size if isinstance(size, int) else None


def _tokens(folder: Path) -> dict[int, str]:
    from transformers import AutoTokenizer  # takes seconds

    if not folder.is_dir():  # transformers would take it for the name of a model on a hub
        raise OSError(f"there is no folder {folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)  # nosec B615
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if the tokenizers differ, so that the server does not start."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    report = compare(options.target, options.draft, options.target_tokenizer or options.target)
    print(report.encode())
    if options.report is not None:
        options.report.write_text(report.encode(), encoding="utf-8")
    return int(report.tokenizer_compatible is False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m slipstream_vllm.preflight",
        description="Compare a draft model's tokenizer with its target's, without loading weights.",
        allow_abbrev=False,
    )
    parser.add_argument("--target", type=Path, required=True, help="the target's checkpoint folder")
    parser.add_argument("--target-tokenizer", type=Path, help="folder of its tokenizer (default: the checkpoint)")
    parser.add_argument("--draft", type=Path, required=True, help="the draft's checkpoint folder")
    parser.add_argument("--report", type=Path, help="also write the report to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
