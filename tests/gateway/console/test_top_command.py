"""`slipstream top` against a real gateway: one frame, a live screen in a real terminal, and errors of one line."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings
from slipstream_tools.cli import main

WAIT_S = 30.0
Console = Callable[..., Any]
Send = Callable[..., list[httpx.Response]]


def test_one_frame_has_what_the_console_has(
    console: Console, send: Send, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    url = console().url
    answers = send(url, 20)
    assert main(["top", "--once", "--url", url]) == 0
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if line.strip().startswith(answers[0].headers["x-slipstream-class"]))
    assert row.split()[1] == "20"
    assert "67%" in row
    assert "speculation is on, where it pays" in shown
    httpx.post(f"{url}/admin/kills/pair", json={"by": "Ada"}, headers={"x-slipstream-console": "1"}, timeout=15.0)
    assert main(["top", "--once", "--url", url]) == 0
    assert "STOPPED by Ada" in capsys.readouterr().out


class Terminal:
    """`slipstream top` in a terminal of its own, and what it has drawn so far."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "slipstream_tools.cli", "top", "--url", url]
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        # What a shell runs in the background ignores Ctrl-C, and so would its children.
        before_test = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        finally:
            signal.signal(signal.SIGINT, before_test)
        os.close(theirs)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        """Until `text` has been drawn after this call."""
        self.shown = ""
        deadline = time.monotonic() + WAIT_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown[-2000:]
            if select.select([self._ours], [], [], 0.1)[0]:
                self.shown += os.read(self._ours, 65536).decode(errors="replace")

    def stop(self) -> int:
        """By Ctrl-C; the exit code."""
        self.child.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal is gone with its last process
            while os.read(self._ours, 65536):
                pass
        os.close(self._ours)
        return self.child.wait(WAIT_S)


def test_the_screen_keeps_up_and_survives_a_restart(console: Console, send: Send) -> None:
    first = console()
    terminal = Terminal(first.url)
    terminal.wait_for("no requests yet")
    send(first.url, 7)
    terminal.wait_for("7 ")
    first.stop()
    terminal.wait_for("disconnected")
    console(port=first.port)
    terminal.wait_for("live")
    assert terminal.stop() == 0


def test_what_is_wrong_is_one_line(
    console: Console, make_key: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*options: str) -> str:
        capsys.readouterr()
        assert main(["top", "--once", *options]) != 0
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "cannot be reached" in said("--url", "http://127.0.0.1:9")
    assert "--url must be like" in said("--url", "gateway:8080")
    assert "--url must be like" in said("--url", "http://127.0.0.1:99999")
    assert "NO_SUCH_KEY is not set" in said("--key-env", "NO_SUCH_KEY")
    admin, other = make_key("--admin"), make_key()
    running = console(access=AccessSettings(keys=make_key.path))
    assert "--key-env" in said("--url", running.url)
    monkeypatch.setenv("A_KEY", other)
    assert "no admin permission" in said("--url", running.url, "--key-env", "A_KEY")
    assert "no console" in said("--url", f"{running.url}/elsewhere", "--key-env", "A_KEY")
    monkeypatch.setenv("A_KEY", admin)
    assert main(["top", "--once", "--url", running.url, "--key-env", "A_KEY"]) == 0
