"""Servers of their own processes, which end when they read a deadly prompt."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx

from tests.support.polling import eventually

SERVER = Path(__file__).with_name("breaking_server.py")


class Pool:
    """Server processes, and the prompts that they read."""

    def __init__(self, ports: list[int], log: Path, *, deadly: str = "deadly") -> None:
        self.log = log
        self._deadly = deadly
        self._restarting = threading.Lock()
        log.touch()
        self.processes = {port: self._start(port) for port in ports}
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        for url in self.urls:
            eventually(lambda url=url: is_up(url), "a server")

    def _start(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(SERVER), str(port), str(self.log), self._deadly])

    def restart(self) -> None:
        """Starts the servers that have ended again."""
        with self._restarting:
            for port, process in self.processes.items():
                if process.poll() is not None:
                    process.wait()
                    self.processes[port] = self._start(port)

    @property
    def down(self) -> int:
        return sum(process.poll() is not None for process in self.processes.values())

    def runs(self) -> Counter[str]:
        """How often each prompt was read."""
        return Counter(json.loads(line)[1] for line in self.log.read_text().splitlines())

    def servers(self, word: str) -> int:
        """How many servers read a prompt with `word`."""
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return len({port for port, prompt in rows if word in prompt})

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def is_up(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
