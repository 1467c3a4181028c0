"""A program that a launcher requests: the request, and the change of a forked process into this program."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_AUTOGROUP = Path("/proc/self/autogroup")
_PR_SET_PDEATHSIG = 1


class Request(NamedTuple):
    """The state of the launcher. The lists of file descriptors are its numbers and, in the same order, ours."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]
    ignored_signals: list[int]
    umask: int
    nice: int
    cores: list[int]
    received: list[int]

    def is_isolated(self) -> bool:
        """Whether the first option is -I: the program is not to search modules in its folder."""
        return self.arguments[:1] == ["-I"]

    def command(self) -> list[str]:
        """The arguments without -I and without this interpreter's own options, which `multiprocessing` repeats."""
        arguments = self.arguments[1:] if self.is_isolated() else self.arguments
        options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return arguments[len(options) :] if arguments[: len(options)] == options else arguments

    def close(self) -> None:
        for descriptor in self.received:
            os.close(descriptor)


def become(request: Request) -> None:
    """Runs the program in this forked process, which gets the state of the launcher and ends with the parent."""
    _die_with(os.getppid())
    os.setsid()
    _place_descriptors(request.received, request.descriptors)
    os.chdir(request.folder)
    os.umask(request.umask)
    os.sched_setaffinity(0, request.cores)
    os.nice(request.nice - os.nice(0))
    with suppress(OSError):  # no automatic groups in this kernel, or too many changes at once
        _AUTOGROUP.write_text(str(request.nice), encoding="ascii")
    for number in request.ignored_signals:
        signal.signal(number, signal.SIG_IGN)
    _renew_interpreter(request.executable, request.environment)
    _run(request.command(), is_isolated=request.is_isolated())


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above took effect
        os._exit(1)


def _place_descriptors(received: list[int], numbers: list[int]) -> None:
    """Moves each received file to its number in the launcher, by way of numbers that are in neither list."""
    free = max([*received, *numbers]) + 1
    moved = [os.dup2(descriptor, free + index) for index, descriptor in enumerate(received)]
    for descriptor in received:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _renew_interpreter(executable: str, environment: Mapping[str, str]) -> None:
    """Sets what a new interpreter does not share with others."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    sys.modules["numpy"].random.seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    sys.executable = executable
    multiprocessing.set_executable(executable)
    sys.modules["__main__"] = types.ModuleType("__main__")


def _run(command: list[str], *, is_isolated: bool) -> None:
    """As `python COMMAND` would, for `-m MODULE …` and `-c TEXT …`."""
    option, program, *arguments = command
    sys.argv[:] = [option, *arguments]
    if not is_isolated:
        sys.path.insert(0, os.getcwd() if option == "-m" else "")
    if option == "-m":
        runpy._run_module_as_main(program)  # type: ignore[attr-defined]
    else:
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))
