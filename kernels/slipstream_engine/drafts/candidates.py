"""Drafts that are added while an engine serves: the finished drafts of one folder.

A draft is finished when it has the record `training.json` and no work folder of its training. The record has the digest
of the weights. An engine does not serve weights with another digest. The name of a draft is the name of its folder with
the first digits of the digest, so that a name identifies the bytes.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from slipstream_engine.drafts.sources import DraftSource
from slipstream_engine.errors import CheckpointError, DraftMismatchError

logger = logging.getLogger(__name__)

LOOK_S = 5.0
RETRY_S, CLOSE_S = 60.0, 5.0
GONE_LOOKS = 3
"""Number of looks in a row that must miss a draft before it counts as deleted: a network folder may be unreachable for
a moment."""
MOST = 7
"""Maximum number of candidates of an engine. Each has its own weights and cache."""
_RECORD, _WORK, _WEIGHTS = "training.json", ".training", "model.safetensors"
_DIGITS = 8
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
Changed = Callable[[str, DraftSource | None, str], None]


class DraftCandidate(NamedTuple):
    """A finished draft. `only` is the group of requests that it was trained on, empty for all. `finished_s` is the
    modification time of its record."""

    finished_s: float
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
    """Loads the candidates of `folder` with `load`, the newest first.

    It calls `changed(name, source, only)` for each loaded candidate, and `changed(name, None, "")` for a candidate that
    is no longer served: its folder was deleted, or a newer candidate for the same group needs its place. A candidate
    that cannot be loaded is logged once.
    """

    def __init__(self, folder: Path, load: Callable[[str], DraftSource | None], changed: Changed) -> None:
        self._folder, self._load, self._changed = folder, load, changed
        self._served: dict[str, DraftCandidate] = {}
        self._known: set[str] = set()  # served, or never to be served again
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
        """Compare the folder with the served candidates."""
        found = {candidate.name: candidate for candidate in _finished(self._folder)}
        self._missed = Counter({name: self._missed[name] + 1 for name in self._known - found.keys()})
        for name in [name for name, looks in self._missed.items() if looks >= GONE_LOOKS]:
            self._forget(name)
        for name in reversed([name for name in found if name not in self._known]):
            if time.monotonic() < self._retry_s.get(name, 0.0):
                continue
            if len(self._served) >= MOST and not self._made_room(found[name]):
                self._say(name, f"waits: there are {MOST} already")
            else:
                self._take(name, found[name])

    def _forget(self, name: str) -> None:
        self._known.discard(name)
        self._said.discard(name)
        if name in self._served:
            self._retire(name, "its folder was deleted")

    def _made_room(self, candidate: DraftCandidate) -> bool:
        """Whether the oldest candidate for the same group was retired, which is older than `candidate`."""
        older = {name: one for name, one in self._served.items() if one.only == candidate.only and one < candidate}
        if older:
            self._retire(min(older, key=older.__getitem__), "a newer one needs its place")
        return bool(older)

    def _retire(self, name: str, why: str) -> None:
        del self._served[name]
        self._changed(name, None, "")
        logger.info("candidate %s is no longer served: %s", name, why)

    def _say(self, name: str, what: str) -> None:
        if name not in self._said:
            logger.warning("candidate %s %s", name, what)
            self._said.add(name)

    def _take(self, name: str, candidate: DraftCandidate) -> None:
        try:
            _check_bytes(candidate)
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
            self._served[name] = candidate
            self._changed(name, source, candidate.only)
            logger.info("candidate %s is served for %s", name, candidate.only or "all requests")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
            except Exception:  # top of the thread: later candidates must be found all the same
                logger.exception("the candidates in %s could not be looked at", self._folder)
            self._closing.wait(LOOK_S)


def _finished(folder: Path) -> list[DraftCandidate]:
    """The finished drafts of `folder`, the oldest first. Empty if the folder is missing."""
    found = []
    for path in folder.glob(f"*/{_RECORD}"):
        if not _FOLDER.fullmatch(path.parent.name) or (path.parent / _WORK).exists():
            continue  # a name with a dot at its beginning is that of a draft whose training has not been judged
        try:
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
            found.append(DraftCandidate(path.stat().st_mtime, path.parent, record.sha256, record.only))
        except (OSError, msgspec.DecodeError) as exc:
            logger.debug("%s: %s", path, exc)
    return sorted(found)


def _check_bytes(candidate: DraftCandidate) -> None:
    """Raises `OSError` if the digest of the weights is not that of the record, as while the draft is still copied."""
    with (candidate.folder / _WEIGHTS).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != candidate.sha256:
        raise OSError(f"the SHA-256 of {candidate.folder / _WEIGHTS} is not that in {_RECORD}")
