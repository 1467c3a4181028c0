"""Builds an engine from settings: device, weights, tokenizers, and the draft with its check against the target."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection

import torch

from slipstream_engine.config import load_config
from slipstream_engine.draft_compatibility import check_draft
from slipstream_engine.draft_pool import DraftPool
from slipstream_engine.drafts import DraftSource, ModelDrafts, PromptLookup
from slipstream_engine.eagle import EagleDrafts, EagleHead
from slipstream_engine.engine import Engine
from slipstream_engine.errors import CheckpointError, DraftMismatchError
from slipstream_engine.fingerprint import fingerprint_of
from slipstream_engine.hybrid_drafts import HybridDrafts
from slipstream_engine.model import Model
from slipstream_engine.settings import EngineSettings, resolve_source, resolve_tokenizer
from slipstream_engine.tensor_files import is_eagle_head
from slipstream_engine.tokenizer import Tokenizer
from slipstream_engine.verification_backend import usable_backend

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_engine(settings: EngineSettings) -> Engine:
    """Load target and draft and allocate their caches.

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
    return Engine(
        target,
        tokenizer,
        _drafts(settings, target, tokenizer),
        slots=settings.max_slots,
        max_draft_tokens=settings.max_draft_tokens,
        max_waiting=settings.max_waiting,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        verify_backend=usable_backend(device, dtype, target.config.vocab_rows),
        fingerprint=fingerprint_of(target, checkpoint=folder, tokenizer=tokenizer_folder),
    )


def _drafts(settings: EngineSettings, target: Model, tokenizer: Tokenizer) -> DraftPool | None:
    """All drafts by their sources, None without any."""
    if settings.draft_kind == "none":
        return None
    if settings.draft_kind == "ngram":
        return DraftPool({"ngram": PromptLookup(settings.max_slots, target.device)})
    if settings.draft is None:
        raise CheckpointError(f"draft_kind is {settings.draft_kind!r}, but no draft checkpoint is named")
    sources: dict[str, DraftSource] = {}
    names = settings.draft_names.splitlines()
    for index, source in enumerate((settings.draft, *settings.more_drafts.splitlines())):
        model = _draft_model(settings, source, target, tokenizer)
        if model is not None:
            lookup = PromptLookup(settings.max_slots, target.device)
            sources[_name(names[index] if names else source, sources)] = (
                model if settings.draft_kind == "model" else HybridDrafts(lookup, model)
            )
    return DraftPool(sources) if sources else None


def _name(source: str, taken: Collection[str]) -> str:
    """The last part of a draft's name or source, which clients see; numbered if it is `taken`."""
    name = source.rstrip("/").rpartition("/")[2]
    numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(one for one in numbered if one not in taken)


def _draft_model(settings: EngineSettings, source: str, target: Model, tokenizer: Tokenizer) -> ModelDrafts | None:
    folder = resolve_source(source)
    try:
        if is_eagle_head(folder):
            return EagleDrafts(EagleHead.load(folder, target), target, settings.max_slots)
        own = settings.draft_tokenizer if source == settings.draft else None
        draft_tokenizer = Tokenizer.load(resolve_tokenizer(own, folder), checkpoint=folder)
        check_draft(tokenizer, draft_tokenizer, target.config.vocab_rows, load_config(folder).vocab_rows)
    except DraftMismatchError as exc:
        if settings.on_draft_mismatch == "refuse":
            raise DraftMismatchError(f"draft {source!r}: {exc}") from exc
        logger.warning("the draft %r does not match, so no request uses it: %s", source, exc)
        return None
    draft = Model.load(folder, device=target.device, dtype=target.dtype, context_tokens=target.context_tokens)
    return ModelDrafts(draft, settings.max_slots, target.config.vocab_rows)


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
