"""Builds an engine from settings: device, weights, tokenizers, and the draft with its check against the target."""

from __future__ import annotations

import logging

import torch

from slipstream_engine.config import load_config
from slipstream_engine.draft_compatibility import check_draft
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
        _draft_source(settings, target, tokenizer),
        slots=settings.max_slots,
        max_draft_tokens=settings.max_draft_tokens,
        max_waiting=settings.max_waiting,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        verify_backend=usable_backend(device, dtype, target.config.vocab_rows),
        fingerprint=fingerprint_of(target, checkpoint=folder, tokenizer=tokenizer_folder),
    )


def _draft_source(settings: EngineSettings, target: Model, tokenizer: Tokenizer) -> DraftSource | None:
    if settings.draft_kind == "none":
        return None
    if settings.draft_kind == "ngram":
        return PromptLookup(settings.max_slots, target.device)
    model = _draft_model(settings, target, tokenizer)
    if model is None or settings.draft_kind == "model":
        return model
    return HybridDrafts(PromptLookup(settings.max_slots, target.device), model)


def _draft_model(settings: EngineSettings, target: Model, tokenizer: Tokenizer) -> ModelDrafts | None:
    if settings.draft is None:
        raise CheckpointError(f"draft_kind is {settings.draft_kind!r}, but no draft checkpoint is named")
    folder = resolve_source(settings.draft)
    try:
        if is_eagle_head(folder):
            return EagleDrafts(EagleHead.load(folder, target), target, settings.max_slots)
        draft_tokenizer = Tokenizer.load(resolve_tokenizer(settings.draft_tokenizer, folder), checkpoint=folder)
        check_draft(tokenizer, draft_tokenizer, target.config.vocab_rows, load_config(folder).vocab_rows)
    except DraftMismatchError as exc:
        if settings.on_draft_mismatch == "refuse":
            raise
        logger.warning("the draft %r does not match, so every request decodes without drafts: %s", settings.draft, exc)
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
