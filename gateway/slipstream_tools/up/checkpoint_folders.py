"""A check that the checkpoint folders of a pair exist, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.manifest import ModelPair
from slipstream_core.manifest.adapters import adapters_of
from slipstream_core.manifest.sources import EMBEDDED, REMOTE, located


def check_folders(pair: ModelPair, sources: Path) -> None:
    """Raises CommandError if a folder that `pair` names is missing or incomplete."""
    for field, source, needed in _named_folders(pair):
        if source.startswith(REMOTE):
            where = f"ModelPair/{pair.metadata.name}: spec.{field}"
            raise CommandError(f"{where}: {source} is for a cluster; here, download it and name its folder")
        folder = Path(located(source, sources))
        if not source.startswith(EMBEDDED) and not (folder / needed).is_file():
            what = f"there is no {needed} in" if folder.is_dir() else "there is no folder"
            raise CommandError(f"ModelPair/{pair.metadata.name}: spec.{field}: {what} {folder}")


def _named_folders(pair: ModelPair) -> Iterator[tuple[str, str, str]]:
    """(field, source, a required file) of each folder that the pair's spec names."""
    for name, part in (("target", pair.spec.target), ("draft", pair.spec.draft)):
        if part is not None and part.source is not None:
            yield f"{name}.source", part.source, "config.json"
        if part is not None and part.tokenizer is not None:
            yield f"{name}.tokenizer", part.tokenizer, "tokenizer.json"
    for index, source in enumerate(pair.spec.draft.alternatives if pair.spec.draft is not None else ()):
        yield f"draft.alternatives[{index}]", source, "config.json"
    for index, adapter in enumerate(adapters_of(pair)):
        if adapter.source is not None:
            yield f"engine.adapters[{index}].source", adapter.source, "adapter_config.json"
