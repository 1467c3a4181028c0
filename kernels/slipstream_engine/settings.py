"""Settings of an engine: plain values, validated once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from slipstream_engine.errors import CheckpointError

EMBEDDED = Path(__file__).parent / "embedded"
EMBEDDED_SCHEME = "embedded"

Positive = Annotated[int, msgspec.Meta(ge=1)]
DraftKind = Literal["model", "ngram", "hybrid", "none"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
OnDraftMismatch = Literal["refuse", "plain"]
Settings = TypeVar("Settings", bound=msgspec.Struct)


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: a target, a draft source and limits.

    `target` and `draft` are checkpoint folders, or `embedded:target` / `embedded:draft` for the pair in this package;
    `embedded:smollm2-eagle` is an EAGLE head for SmolLM2-135M-Instruct.
    `draft_kind` "hybrid" drafts with n-grams where the text repeats itself, and with the draft model elsewhere.
    `more_drafts` are further drafts of that kind, one source in each line: the engine learns which one suits which
    requests. `draft_names` has a name for each of the drafts, in lines; without it, sources are names. `candidates` is
    a folder. Each finished draft of `slipstream drafts train` in it is a further draft, also one that is added later.
    `tokenizer` and
    `draft_tokenizer` are tokenizer folders outside the checkpoint. If a draft's tokenizer differs from the target's,
    `on_draft_mismatch` "plain" logs a warning and decodes every request without drafts; "refuse" loads nothing. Up to
    `max_slots` requests decode together, and `max_waiting` more may queue. `prefill_chunk_tokens` limits the prompt
    tokens that are read for each output token of the other requests' streams. `context_tokens` None uses the target's
    maximum; `threads` None keeps PyTorch's default. Out-of-range values raise `msgspec.ValidationError` on conversion,
    and a missing folder raises `CheckpointError`.
    """

    target: str
    tokenizer: str | None = None
    draft: str | None = None
    draft_tokenizer: str | None = None
    draft_kind: DraftKind = "none"
    more_drafts: str = ""
    draft_names: str = ""
    candidates: str | None = None
    on_draft_mismatch: OnDraftMismatch = "refuse"
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
    folder = _folder(source)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"checkpoint {source!r}: there is no config.json in {folder}")
    return folder


def resolve_tokenizer(source: str | None, checkpoint: Path) -> Path:
    """The folder of the tokenizer that `source` names, by default that of the `checkpoint` itself."""
    return checkpoint if source is None else _folder(source)


def _folder(source: str) -> Path:
    scheme, _, name = source.partition(":")
    return EMBEDDED / name if scheme == EMBEDDED_SCHEME else Path(source)


def settings_from_text(given: Mapping[str, str], kind: type[Settings]) -> Settings:
    """The settings `given` by their names. Missing and empty ones keep their defaults.

    Raises:
        CheckpointError: a name is unknown, or a value is invalid.
    """
    unknown = sorted(given.keys() - set(kind.__struct_fields__))
    if unknown:
        raise CheckpointError(f"the engine has no setting {unknown[0]!r}")
    try:
        return msgspec.convert({name: value for name, value in given.items() if value}, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise CheckpointError(f"settings of the engine: {exc}") from exc
