"""Loads draft sources for a loaded target."""

from __future__ import annotations

import logging
from pathlib import Path

from slipstream_engine.drafts.compatibility import check_draft
from slipstream_engine.drafts.eagle import EagleDrafts, EagleHead
from slipstream_engine.drafts.hybrid import HybridDrafts
from slipstream_engine.drafts.memory import available_bytes
from slipstream_engine.drafts.sources import DraftSource, ModelDrafts, PromptLookup
from slipstream_engine.errors import DraftMismatchError
from slipstream_engine.model.cache import SlotCache
from slipstream_engine.model.config import load_config
from slipstream_engine.model.model import Model
from slipstream_engine.model.tensor_files import is_eagle_head
from slipstream_engine.settings import EngineSettings, resolve_source, resolve_tokenizer
from slipstream_engine.text.tokenizer import Tokenizer

_LOADED = 2  # the weights of a bfloat16 file become float32

logger = logging.getLogger(__name__)


class DraftLoader:
    """Loads drafts for `target` as `settings` say. Thread-safe."""

    def __init__(self, settings: EngineSettings, target: Model, tokenizer: Tokenizer) -> None:
        self._settings, self._target, self._tokenizer = settings, target, tokenizer

    def load(self, source: str) -> DraftSource | None:
        """The draft of the checkpoint `source` with caches for all slots. None if its tokens are not the target's, and
        the settings permit that.

        Raises:
            CheckpointError: the checkpoint is broken or unsupported.
            DraftMismatchError: the draft's token ids differ from the target's, and `on_draft_mismatch` is "refuse".
        """
        try:
            model = self._model(source, resolve_source(source))
        except DraftMismatchError as exc:
            if self._settings.on_draft_mismatch == "refuse":
                raise DraftMismatchError(f"draft {source!r}: {exc}") from exc
            logger.warning("the draft %r does not match, so no request uses it: %s", source, exc)
            return None
        return HybridDrafts(self.lookup(), model) if self._settings.draft_kind == "hybrid" else model

    def load_added(self, source: str) -> DraftSource | None:
        """As `load`, for an engine that serves already. On a CPU the kernel would end the engine if the memory did not
        suffice. On a GPU PyTorch raises an error.

        Raises:
            OSError: the draft may need more memory than is available.
        """
        if self._target.device.type == "cpu":
            self._check_memory(resolve_source(source))
        return self.load(source)

    def _check_memory(self, folder: Path) -> None:
        available = available_bytes()
        config, slots, target = load_config(folder), self._settings.max_slots, self._target
        context = min(target.context_tokens, config.context_tokens)
        files = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        needed = _LOADED * files + SlotCache.size_bytes(config, slots, context, target.dtype)
        if available is not None and needed > available:
            raise OSError(
                f"it may need {needed / 2**20:.0f} MiB with its cache of {slots} slots of {context} tokens, and "
                f"{available / 2**20:.0f} MiB of memory are available"
            )

    def lookup(self) -> PromptLookup:
        """Drafts of n-grams, which need no checkpoint."""
        return PromptLookup(self._settings.max_slots, self._target.device)

    def _model(self, source: str, folder: Path) -> ModelDrafts:
        settings, target = self._settings, self._target
        if is_eagle_head(folder):
            return EagleDrafts(EagleHead.load(folder, target), target, settings.max_slots)
        own = settings.draft_tokenizer if source == settings.draft else None
        draft_tokenizer = Tokenizer.load(resolve_tokenizer(own, folder), checkpoint=folder)
        check_draft(self._tokenizer, draft_tokenizer, target.config.vocab_rows, load_config(folder).vocab_rows)
        draft = Model.load(folder, device=target.device, dtype=target.dtype, context_tokens=target.context_tokens)
        return ModelDrafts(draft, settings.max_slots, target.config.vocab_rows)
