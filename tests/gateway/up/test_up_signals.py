"""`slipstream up` and the signals that end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from slipstream_tools.up.command import _stop_signal, _watch

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
        assert _watch([], stop) == 0
        while sender.poll() is None:
            pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
