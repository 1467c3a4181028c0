"""What an engine is built from: plain values, validated once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from slipstream_engine.errors import CheckpointError

EMBEDDED = Path(__file__).parent / "embedded"

Positive = Annotated[int, msgspec.Meta(ge=1)]
DraftKind = Literal["model", "ngram", "none"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: a target, a source of drafts and how much may run at once.

    `target` and `draft` are checkpoint folders, or `embedded:target` / `embedded:draft` for the pair that comes
    with the package. `max_slots` requests decode together, `max_waiting` more may queue. `prefill_chunk_tokens`
    bounds how much of a prompt one step may take while other requests stream. `context_tokens` None takes what
    the target allows; `threads` None leaves PyTorch's choice. Out-of-range values raise `msgspec.ValidationError`
    when converted, and `CheckpointError` names a folder that is not there.
    """

    target: str
    draft: str | None = None
    draft_kind: DraftKind = "none"
    max_draft_tokens: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
    max_slots: Positive = 8
    max_waiting: Annotated[int, msgspec.Meta(ge=0)] = 64
    context_tokens: Positive | None = None
    prefill_chunk_tokens: Positive = 128
    device: Device = "auto"
    dtype: Dtype = "auto"
    threads: Positive | None = None


def resolve_source(source: str) -> Path:
    """The checkpoint folder that `source` names.

    Raises:
        CheckpointError: there is no such folder, or no such embedded checkpoint.
    """
    scheme, _, name = source.partition(":")
    folder = EMBEDDED / name if scheme == "embedded" else Path(source)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"checkpoint {source!r}: there is no config.json in {folder}")
    return folder
