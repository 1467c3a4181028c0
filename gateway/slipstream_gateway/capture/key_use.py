"""How much of a pair's files of one day each API key takes, so that one key does not fill the day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from slipstream_gateway.capture.store import CaptureStore, StoredFile


class KeyUse:
    """Counts bytes by key. It reads each file once, the columns `key` and `size_bytes` alone."""

    def __init__(self, store: CaptureStore) -> None:
        self._store = store
        self._known: dict[str, dict[str, Mapping[str, float]]] = {}

    def of(self, pair: str, files: Iterable[StoredFile]) -> Mapping[str, float]:
        """The stored bytes of each key in `files`, which are all of the pair's day. An answer takes of its file the
        share that it has of the texts in it."""
        before = self._known.get(pair, {})
        known = self._known[pair] = {file.path: before.get(file.path) or self._read(file) for file in files}
        total: Counter[str] = Counter()
        for by_key in known.values():
            total.update(by_key)
        return total

    def _read(self, file: StoredFile) -> Mapping[str, float]:
        """Empty for a file that cannot be read."""
        sizes: Counter[str] = Counter()
        with suppress(OSError):
            for row in self._store.read(file, ("key", "size_bytes")).to_pylist():
                sizes[row["key"]] += row["size_bytes"]
        scale = file.size_bytes / max(1, sizes.total())
        return {key: scale * size for key, size in sizes.items()}
