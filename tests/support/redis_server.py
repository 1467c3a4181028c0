"""A real `redis-server` that tests start, kill, stop and restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.support.polling import PATIENCE_S, eventually


class RedisServer:
    """A `redis-server` on a free port of the loopback, with its data in `folder`."""

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.fail("redis-server was not found: these tests run a real one; install Debian's package redis-server")
        self._binary = binary
        self.folder = folder
        self.port = port
        self._options = options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        log = (self.folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen([*command, "--save", "", *self._options], stdout=log, stderr=log)
        eventually(lambda: self._answers() or self._process.poll() is not None, "redis-server's first answer")
        assert self._process.poll() is None, (self.folder / "redis.log").read_text()[-500:]

    def client(self, **options: Any) -> Redis:
        return Redis(port=self.port, socket_timeout=PATIENCE_S, retry=Retry(NoBackoff(), 0), **options)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def pause(self) -> None:
        """Connections stay open, nothing is answered."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def heal(self) -> None:
        """Whatever was done to it: it answers again, on the same port."""
        if self._process.poll() is None:
            self.resume()
        else:
            self.start()

    def stop(self) -> None:
        if self._process.poll() is None:
            self.resume()
            self.kill()

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except RedisError as error:
            return "auth" in str(error).lower()
        return True
