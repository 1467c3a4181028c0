"""Where tests and processes hang: the stacks of processes, and what asyncio's tasks wait for."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

_PY_SPY = Path(sys.executable).with_name("py-spy")
_DUMP_S = 30.0


def stacks_of_children() -> str:
    """The stacks of all processes below this one that run Python, as far as they can be read."""
    found = []
    for child in psutil.Process().children(recursive=True):
        command = [str(_PY_SPY), "dump", "--pid", str(child.pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_S, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            found.append(done.stdout)
    return "\n".join(found)


class HungTests:
    """The plugin that attaches to a test that its time limit has ended what it waited for."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
            report.sections.append(("Waiting tasks", "\n\n".join(_waiting_tasks())))
            report.sections.append(("Processes of the test", stacks_of_children()))
        return report  # type: ignore[no-any-return]


def _waiting_tasks() -> Iterator[str]:
    """The name of each task that is not done, and its coroutines from the outermost one to what it waits for."""
    for task in gc.get_objects():
        if isinstance(task, asyncio.Task) and not task.done():
            yield "\n".join([task.get_name(), *_places(task.get_coro())])


def _places(waiting: Any) -> Iterator[str]:
    """Coroutines, generators and asynchronous generators name their frame and what they wait for by their kind. A step
    of an asynchronous generator names neither, but refers to it."""
    while waiting is not None:
        kind = _kind(waiting)
        if kind is None:
            yield f"  {waiting!r}"
            waiting = next(filter(_kind, gc.get_referents(waiting)), None)
            continue
        frame: FrameType | None = getattr(waiting, f"{kind}_frame")
        if frame is not None:
            yield f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")


def _kind(waiting: Any) -> str | None:
    return next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
