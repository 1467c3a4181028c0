"""Drafts that come while an engine serves: those that trainings have finished in one folder.

A draft is finished when its `training.json` is there and its folder of work is gone. The record has the digest of the
weights, so that a draft whose bytes have changed since is not served. Its name is that of its folder, with the first
digits of the digest: a name means certain bytes.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream_engine.drafts import DraftSource
from slipstream_engine.errors import CheckpointError, DraftMismatchError

logger = logging.getLogger(__name__)

LOOK_S = 5.0
RETRY_S, CLOSE_S = 60.0, 5.0
GONE_LOOKS = 3
"""Looks in a row without a draft, after which it is gone: a folder on a network may be away for a moment."""
MOST = 7
"""Candidates of an engine at a time: each has weights and a cache of its own."""
_RECORD, _WORK, _WEIGHTS = "training.json", ".training", "model.safetensors"
_DIGITS = 8
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
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
        self._known: set[str] = set()  # served, or left out for good
        self._said: set[str] = set()
        self._missed: Counter[str] = Counter()
        self._retry_s: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream-candidates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def look(self) -> None:
        """Take in what has changed in the folder."""
        found = {candidate.name: candidate for candidate in _finished(self._folder)}
        self._missed = Counter({name: self._missed[name] + 1 for name in self._known - found.keys()})
        for name in [name for name, looks in self._missed.items() if looks >= GONE_LOOKS]:
            self._forget(name)
        for name in reversed([name for name in found if name not in self._known]):
            if len(self._served) >= MOST:
                self._say(name, f"waits: there are {MOST} already")
            elif time.monotonic() >= self._retry_s.get(name, 0.0):
                self._take(name, found[name])

    def _forget(self, name: str) -> None:
        self._known.discard(name)
        self._said.discard(name)
        if name in self._served:
            self._served.discard(name)
            self._changed(name, None, "")
            logger.info("candidate %s is gone: no more requests have it", name)

    def _say(self, name: str, what: str) -> None:
        if name not in self._said:
            logger.warning("candidate %s %s", name, what)
            self._said.add(name)

    def _take(self, name: str, candidate: Candidate) -> None:
        try:
            _check_bytes(candidate)  # it may still be copied
            source = self._load(str(candidate.folder))
        except (CheckpointError, DraftMismatchError) as exc:
            self._known.add(name)
            self._say(name, f"is left out: {' '.join(str(exc).split())}")
            return
        except (OSError, RuntimeError) as exc:  # PyTorch raises RuntimeError where memory fails
            self._retry_s[name] = time.monotonic() + RETRY_S
            self._say(name, f"cannot be loaded now: {' '.join(str(exc).split())}")
            return
        self._known.add(name)
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
    found = []
    for path in folder.glob(f"*/{_RECORD}"):
        if not _FOLDER.fullmatch(path.parent.name) or (path.parent / _WORK).exists():
            continue  # among them those that are not yet judged, whose names begin with a dot
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
            found.append((path.stat().st_mtime, Candidate(path.parent, record.sha256, record.only)))
        except (OSError, msgspec.DecodeError) as exc:
            logger.debug("%s: %s", path, exc)
    return (candidate for _, candidate in sorted(found))


def _check_bytes(candidate: Candidate) -> None:
    """Raises `OSError` if the weights are not those of the record, or not yet."""
    with (candidate.folder / _WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != candidate.sha256:
        raise OSError(f"{candidate.folder / _WEIGHTS} is not that of its training")
