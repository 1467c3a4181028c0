"""The processes that faults are played on: Triton replicas, gateways, Redis. Each ends by its own id, whatever happens.

They must be started from a thread that lives as long as the program (see `Child`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from slipstream_tools.up.processes import Child
from slipstream_tools.up.triton_server import TritonPorts, TritonServer

from tests.support.command import SLIPSTREAM
from tests.support.polling import eventually

READY_S = 120.0
DRAIN_S = 30.0
_PR_SET_PDEATHSIG = 1
_PROBE_S = 2.0


class Replica:
    """A Triton with the embedded pair that always comes back on the same ports."""

    def __init__(self, *, repository: Path, folder: Path, ports: TritonPorts) -> None:
        """It does not run yet."""
        self.ports = ports
        self._repository, self._folder = repository, folder
        self._starts = 0
        self._server: TritonServer | None = None
        self._halted = False

    @property
    def endpoint(self) -> str:
        return f"grpc://{self.ports.host}:{self.ports.grpc}"

    @property
    def pid(self) -> int:
        assert self._server is not None, "the replica does not run"
        return self._server.child.pid

    def start(self) -> None:
        """Begin to start it; `wait_ready` says when it serves."""
        if self._server is not None:
            return
        self._starts += 1
        run_dir = self._folder / f"start-{self._starts}"
        run_dir.mkdir(parents=True)
        self._server = TritonServer(model_repository=self._repository, run_dir=run_dir, ports=self.ports)

    def wait_ready(self) -> None:
        assert self._server is not None, "the replica does not run"
        self._server.wait_ready(timeout_s=READY_S)

    def kill(self) -> float:
        """End it at once with all of its processes, as a node that loses its power; when, by `time.perf_counter`."""
        self.resume()
        os.killpg(self.pid, signal.SIGKILL)
        killed_s = time.perf_counter()
        self._forget()
        return killed_s

    def halt(self) -> None:
        """Keep its connections open and answer nothing."""
        self._halted = True
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `halt`."""
        if self._halted and self._server is not None:
            os.killpg(self.pid, signal.SIGCONT)
        self._halted = False

    def stop(self) -> None:
        if self._server is not None:
            self.resume()
            self._forget()

    def heal(self) -> None:
        """Whatever was done to it: it serves again."""
        self.resume()
        if self._server is not None and self._server.child.exit_status() is not None:
            self._forget()
        self.start()
        self.wait_ready()

    def _forget(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = None


class Gateway:
    """A `slipstream gateway` that always comes back on the same port. `source` is where it has its manifest from, as
    options; `prefix` is what runs its command, such as `ip netns exec NAME`."""

    def __init__(
        self,
        *,
        name: str,
        folder: Path,
        source: Sequence[str],
        port: int,
        host: str = "127.0.0.1",
        redis_url: str | None = None,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """It does not run yet."""
        self.port = port
        self.url = f"http://{host}:{port}"
        self.log_path = folder / f"{name}.log"
        self._name = name
        self._command = [
            *(*prefix, *SLIPSTREAM, "gateway"),
            *(*source, "--host", host, "--port", str(port), "--drain", str(DRAIN_S), *options),
        ]
        self._env = {**os.environ, **({"SLIPSTREAM_REDIS_URL": redis_url} if redis_url else {})}
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the gateway does not run"
        return self._child.pid

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        self._child = Child(name=self._name, command=self._command, log_path=self.log_path, env=self._env)

        def is_ready() -> bool:
            if (status := self._child.exit_status()) is not None:
                raise AssertionError(f"{self._name} {status} while starting: {self._child.log_tail()}")
            return self._not_ready() is None

        eventually(is_ready, f"{self._name} is ready", within_s=READY_S, seen=self._not_ready)

    def terminate(self, *, within_s: float) -> bool:
        """Ask it to end, as Kubernetes does; whether it did within `within_s`."""
        assert self._child is not None, "the gateway does not run"
        self._child.terminate()
        ended = self._child.wait(within_s)
        self.stop()
        return ended

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(timeout_s=5)
        self._child = None

    def _not_ready(self) -> str | None:
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=_PROBE_S):
                return None
        except urllib.error.HTTPError as error:
            return error.read().decode(errors="replace")
        except OSError as error:
            return str(error)


def from_file(manifest: Path, endpoints: Sequence[str]) -> list[str]:
    """The `source` of a gateway: a manifest file, and the addresses of its local pair."""
    return ["--manifest", str(manifest), *(part for url in endpoints for part in ("--local-endpoint", url))]


def end_with_parent() -> None:
    """For a forked process of the harness: SIGTERM ends it, and comes when the harness ends, however that happens."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
