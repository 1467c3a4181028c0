"""The present draft length of each class in the engine: the file's, or 0 while a threshold of the class is crossed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from slipstream_vllm.class_file import ClassFile
from slipstream_vllm.classes import UNLABELLED, Classes
from slipstream_vllm.draft_allocation import Retry

ENOUGH_DRAFTED = 256
"""Draft tokens of a class over which its acceptance is judged."""

Origin = Literal["file", "request", "limit", "threshold", "server"]


class Evidence:
    """The acceptance of a class with the threshold `least`. A class below it is tried again as `Retry` says."""

    def __init__(self, least: float) -> None:
        self.is_below = False
        self._least = least
        self._drafted = self._accepted = 0
        self._retry = Retry()

    def add(self, drafted: int, accepted: int) -> None:
        self._drafted += drafted
        self._accepted += accepted
        if self._drafted >= ENOUGH_DRAFTED:
            self.is_below = self._accepted < self._least * self._drafted
            self._drafted = self._accepted = 0

    def step(self) -> None:
        if self.is_below and self._retry.avoided():
            self.is_below = False


class ClassLengths:
    """Draft lengths of requests that set none, in a server that drafts up to `most` tokens. Fixed during a step."""

    def __init__(self, file: ClassFile | None, most: int) -> None:
        self._file = file
        self._most = most
        self._running = 0
        self._use(Classes() if file is None else file.current())

    def _use(self, classes: Classes) -> None:
        self._classes = classes
        self._evidence = {
            label: Evidence(entry.min_acceptance) for label, entry in classes.lengths.items() if entry.min_acceptance
        }

    @property
    def labels(self) -> Iterable[str]:
        """The classes in the file."""
        return self._classes.lengths

    def begin_step(self, running: int) -> None:
        """Fix the lengths of a step in which `running` requests run."""
        self.refresh(running)
        for evidence in self._evidence.values():
            evidence.step()

    def refresh(self, running: int) -> None:
        """Read the file if it changed."""
        self._running = running
        if self._file is not None and (classes := self._file.current()) is not self._classes:
            self._use(classes)

    def present(self, request_class: str | None) -> tuple[int, Origin]:
        """The draft length of a class in this step, and its origin."""
        label = request_class or UNLABELLED
        entry = self._classes.lengths.get(label)
        if entry is None:
            return self._most, "server"
        evidence = self._evidence.get(label)
        if (evidence is not None and evidence.is_below) or (
            entry.max_running is not None and self._running > entry.max_running
        ):
            return 0, "threshold"
        return entry.length, "file"

    def verified(self, request_class: str | None, drafted: int, accepted: int) -> None:
        """Learn from the verified draft of a request."""
        if (evidence := self._evidence.get(request_class or UNLABELLED)) is not None:
            evidence.add(drafted, accepted)
