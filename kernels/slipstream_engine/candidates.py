"""Drafts that come while an engine serves: those that trainings have finished in one folder.

A draft is finished when its `training.json` is there and its folder of work is gone. The record has the digest of the
weights, so that a draft whose bytes have changed since is not served. Its name is that of its folder, with the first
digits of the digest: a name means certain bytes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream_engine.drafts import DraftSource
from slipstream_engine.errors import CheckpointError, DraftMismatchError

logger = logging.getLogger(__name__)

LOOK_S = 5.0
MOST = 7
"""Candidates of an engine at a time: each has weights and a cache of its own."""
_RECORD, _WORK, _WEIGHTS = "training.json", ".training", "model.safetensors"
_DIGITS = 8
Changed = Callable[[str, DraftSource | None, str], None]


class Candidate(NamedTuple):
    """A finished draft. `only`: the group of requests that it was trained on, empty for all."""

    folder: Path
    sha256: str
    only: str

    @property
    def name(self) -> str:
        return f"{self.folder.name}-{self.sha256[:_DIGITS]}"


class _Record(msgspec.Struct, frozen=True):
    sha256: str
    only: str = ""


class CandidateWatch:
    """Calls `changed(name, source, only)` for each candidate of `folder` that `load` has loaded, and
    `changed(name, None, "")` when one is gone. What cannot be loaded is logged once, and left out."""

    def __init__(self, folder: Path, load: Callable[[str], DraftSource | None], changed: Changed) -> None:
        self._folder, self._load, self._changed = folder, load, changed
        self._served: set[str] = set()
        self._known: set[str] = set()  # served, or left out
        self._waiting: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream-candidates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look(self) -> None:
        """Take in what has changed in the folder."""
        found = {candidate.name: candidate for candidate in _finished(self._folder)}
        for name in self._served - found.keys():
            self._served.discard(name)
            self._changed(name, None, "")
            logger.info("candidate %s is gone: no more requests have it", name)
        self._known &= found.keys()
        for name in reversed([name for name in found if name not in self._known]):
            if len(self._served) < MOST:
                self._take(name, found[name])
                self._known.add(name)
            elif name not in self._waiting:
                logger.warning("candidate %s waits: there are %d already", name, MOST)
                self._waiting.add(name)

    def _take(self, name: str, candidate: Candidate) -> None:
        try:
            _check_bytes(candidate)
            source = self._load(str(candidate.folder))
        except (CheckpointError, DraftMismatchError, OSError, RuntimeError) as exc:  # PyTorch: RuntimeError
            logger.warning("candidate %s is left out: %s", name, " ".join(str(exc).split()))
            return
        if source is not None:
            self._served.add(name)
            self._changed(name, source, candidate.only)
            logger.info("candidate %s is served for %s", name, candidate.only or "all requests")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:  # top of the thread: later candidates must be found all the same
                logger.exception("the candidates in %s could not be looked at", self._folder)
            self._closing.wait(LOOK_S)


def _finished(folder: Path) -> Iterator[Candidate]:
    """The finished drafts of `folder`, the oldest first. A missing folder has none."""
    records = [path for path in folder.glob(f"*/{_RECORD}") if not (path.parent / _WORK).exists()]
    for path in sorted(records, key=lambda path: path.stat().st_mtime):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
            yield Candidate(path.parent, record.sha256, record.only)
        except (OSError, msgspec.DecodeError) as exc:
            logger.debug("%s: %s", path, exc)


def _check_bytes(candidate: Candidate) -> None:
    """Raises `CheckpointError` if the weights are not those of the record."""
    with (candidate.folder / _WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != candidate.sha256:
        raise CheckpointError(f"{candidate.folder / _WEIGHTS} has changed since its training")
