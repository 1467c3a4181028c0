"""`slipstream up` and the signals that end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slipstream_tools.up.command import _stop_signal, _supervise

from tests.support.polling import PATIENCE_S

SENDER = """
import os, signal, sys
for number in range(20_000):
    os.kill(int(sys.argv[1]), (signal.SIGINT, signal.SIGTERM)[number % 2])
"""


@pytest.mark.integration
@pytest.mark.timeout(30)
def test_many_signals_at_once_are_as_good_as_one() -> None:
    """A terminal, a supervisor and a user may all send theirs; one that interrupts the handler of another must not wait
    for it."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with _stop_signal() as stop:
        sender = subprocess.Popen([sys.executable, "-c", SENDER, str(os.getpid())])
        assert _supervise([], stop) == 0
        while sender.poll() is None:
            pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


WAITS = """
from slipstream_tools.up.command import _stop_signal, _supervise
with _stop_signal() as stop:
    print("waits", flush=True)
    _supervise([], stop)
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_to_make_alone_ends_what_it_runs(number: signal.Signals, tmp_path: Path) -> None:
    """As a script sends it that knows the pid of `make up`. make itself passes on SIGTERM only.

    The suite itself may run below `make test`, whose variables would make this one a make of the second level."""
    (tmp_path / "waits.py").write_text(WAITS, encoding="utf-8")
    (tmp_path / "Makefile").write_text(f"up:\n\t@exec {sys.executable} waits.py\n", encoding="utf-8")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = subprocess.Popen(["make", "up"], cwd=tmp_path, env=alone, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert make.stdout is not None
    assert make.stdout.readline() == b"waits\n"
    make.send_signal(number)
    assert make.stdout.read() == b""  # the end of what it ran, which held the pipe as well
    assert make.wait(PATIENCE_S) != 0
