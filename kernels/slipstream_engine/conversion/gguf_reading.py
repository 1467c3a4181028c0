"""A GGUF file's metadata and tensors, as plain Python and numpy values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from slipstream_engine.errors import CheckpointError

T = TypeVar("T")


class GgufFile:
    """One GGUF file of the `llama` architecture.

    Raises:
        CheckpointError: the file cannot be read, or its architecture is not `llama`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError) as exc:
            raise CheckpointError(f"{path}: not a GGUF file: {exc}") from exc
        architecture = self.get("general.architecture", str)
        if architecture != "llama":
            raise CheckpointError(f"{path}: general.architecture {architecture!r} is not supported, only 'llama'")

    def has(self, name: str) -> bool:
        return name in self._reader.fields

    def get(self, name: str, kind: type[T]) -> T:
        """The value of the metadata field `name`. Raises CheckpointError if it is missing or of another type."""
        field = self._reader.get_field(name)
        if field is None:
            raise CheckpointError(f"{self.path}: the metadata field {name!r} is missing")
        value: Any = field.contents()
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path}: {name}: expected {kind.__name__}, got {type(value).__name__}")
        return value

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """(name, values) of every tensor, dequantised; a matrix as [outputs, inputs]."""
        for tensor in self._reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            yield tensor.name, values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
