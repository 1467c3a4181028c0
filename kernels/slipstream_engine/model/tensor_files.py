"""The files of a checkpoint folder: which tensors it has, from their headers alone, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slipstream_engine.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def is_eagle_head(folder: Path) -> bool:
    """Whether `folder` is a checkpoint of an EAGLE head; False for a folder without weights.

    Raises:
        CheckpointError: the weights are broken.
    """
    has_weights = any((folder / name).is_file() for name in (SINGLE, INDEX))
    return has_weights and any(name == "fc.weight" for name, _ in tensor_files(folder))


def tensor_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The name of each tensor with its file: `model.safetensors`, or a shard that `model.safetensors.index.json` names.

    Raises:
        CheckpointError: there are no such files, or they are broken.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            shards = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            files = [(str(name), folder / shard) for name, shard in shards.items()]
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise CheckpointError(f"{index}: not a safetensors index: {exc!r}") from exc
        yield from files
        return
    single = folder / SINGLE
    if not single.is_file():
        raise CheckpointError(f"{folder}: there is neither {SINGLE} nor {INDEX}")
    try:
        with safe_open(single, framework="np") as shard:
            names = list(shard.keys())
    except (OSError, SafetensorError) as exc:
        raise CheckpointError(f"{single}: {exc}") from exc
    yield from ((name, single) for name in names)


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write `content` as the checkpoint's JSON files have it."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
