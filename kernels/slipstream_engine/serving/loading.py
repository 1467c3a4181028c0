"""Builds an engine from settings: device, weights, tokenizers, and the draft with its check against the target."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import torch

from slipstream_engine.drafts.loading import DraftLoader
from slipstream_engine.drafts.pool import DraftPool
from slipstream_engine.drafts.sources import DraftSource
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.model import Model
from slipstream_engine.serving.engine_fingerprint import fingerprint_of
from slipstream_engine.settings import EngineSettings, resolve_source, resolve_tokenizer
from slipstream_engine.step.engine import Engine
from slipstream_engine.step.verification_backend import usable_backend
from slipstream_engine.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_engine(settings: EngineSettings) -> Engine:
    """Load target and drafts and allocate their caches.

    Raises:
        CheckpointError, DraftMismatchError: see `load`.
    """
    engine, _ = load(settings)
    return engine


def load(settings: EngineSettings) -> tuple[Engine, DraftLoader]:
    """Load target and drafts, and allocate their caches. The loader is for drafts that are added later.

    Raises:
        CheckpointError: a folder is broken or unsupported, or the device is missing.
        DraftMismatchError: the draft's token ids differ from the target's, and `on_draft_mismatch` is "refuse".
    """
    device, dtype = _device(settings), _dtype(settings)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    folder = resolve_source(settings.target)
    target = Model.load(folder, device=device, dtype=dtype, context_tokens=settings.context_tokens)
    tokenizer_folder = resolve_tokenizer(settings.tokenizer, folder)
    tokenizer = Tokenizer.load(tokenizer_folder, checkpoint=folder)
    loader = DraftLoader(settings, target, tokenizer)
    engine = Engine(
        target,
        tokenizer,
        _drafts(settings, loader),
        slots=settings.max_slots,
        max_draft_tokens=settings.max_draft_tokens,
        max_waiting=settings.max_waiting,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        verify_backend=usable_backend(device, dtype, target.config.vocab_rows),
        fingerprint=fingerprint_of(target, checkpoint=folder, tokenizer=tokenizer_folder),
    )
    return engine, loader


def _drafts(settings: EngineSettings, loader: DraftLoader) -> DraftPool | None:
    """All drafts by their sources, None without any."""
    if settings.draft_kind == "none":
        return None
    if settings.draft_kind == "ngram":
        return DraftPool({"ngram": loader.lookup()})
    if settings.draft is None:
        raise CheckpointError(f"draft_kind is {settings.draft_kind!r}, but no draft checkpoint is named")
    sources: dict[str, DraftSource] = {}
    names = settings.draft_names.splitlines()
    for index, source in enumerate((settings.draft, *settings.more_drafts.splitlines())):
        draft = loader.load(source)
        if draft is not None:
            sources[_name(names[index] if names else source, sources)] = draft
    return DraftPool(sources, grows=settings.candidates is not None) if sources else None


def _name(source: str, taken: Collection[str]) -> str:
    """The last part of a draft's name or source, which clients see; numbered if it is `taken`."""
    name = source.rstrip("/").rpartition("/")[2]
    numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(one for one in numbered if one not in taken)


def _device(settings: EngineSettings) -> torch.device:
    available = torch.cuda.is_available()
    if settings.device == "cuda" and not available:
        raise CheckpointError("device is 'cuda', but PyTorch found no CUDA device")
    return torch.device("cuda" if available and settings.device != "cpu" else "cpu")


def _dtype(settings: EngineSettings) -> torch.dtype:
    """float32 on a CPU, where half precision is slower; bfloat16 on a GPU."""
    if settings.dtype != "auto":
        return DTYPES[settings.dtype]
    return torch.bfloat16 if _device(settings).type == "cuda" else torch.float32
