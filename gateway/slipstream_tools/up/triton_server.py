"""A Triton Inference Server as a child process: started, watched until ready, stopped."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from slipstream_core.errors import CommandError

from slipstream_tools.up.processes import Child
from slipstream_tools.up.run_folder import is_fit_for_shell, unfit
from slipstream_tools.up.server import Server
from slipstream_tools.up.triton_install import find_triton, link_backends, link_libraries, triton_environment

EXIT_TIMEOUT_S = 5
SHARED_MEMORY = Path("/dev/shm")  # nosec B108 # where Triton has its own, by a prefix of ours
_RESTARTS = 2
# Triton aborts with this exception if the Python process of a model does not set its health flag for a second while the
# model loads. The second is a constant: `ReceiveMessageFromStub` in python_backend/src/stub_launcher.cc.
_STARVED = "boost::interprocess::lock_exception"
_GIVEN_UP = "Triton has given up this model"  # the end of the model's process, by `slipstream_engine.pipe.load_watch`
_NO_GPU = "CudaDriverHelper has not been initialized"  # Triton logs it at each start on a machine without a GPU
# A model's own load failure, as Triton logs it in its table of models and in error lines.
_LOAD_FAILURES = (
    re.compile(r"TritonModelException: (?P<why>.+?)(?:\n|$)"),
    re.compile(r"failed to load '[^']+' version \d+: (?P<why>.+)"),
    re.compile(r"^E\d{4} .*?\] \"?(?P<why>.+)", re.MULTILINE),
    re.compile(r"^error: (?P<why>.+)", re.MULTILINE),
    re.compile(r"^  what\(\): +(?P<why>.+)", re.MULTILINE),
)


class TritonPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of the server."""

    host: str = "127.0.0.1"
    grpc: int
    http: int
    metrics: int


class TritonServer(Server):
    """A running `tritonserver` for one model repository.

    `run_dir` is private to this server and holds its backend folder and log.
    """

    def __init__(self, *, model_repository: Path, run_dir: Path, ports: TritonPorts) -> None:
        """Starts it; it is not ready yet.

        Raises:
            CommandError: Triton is not installed here, or not for this Python, or a folder has a path with which
                Triton cannot start a model.
        """
        for folder in (model_repository, run_dir):
            if not is_fit_for_shell(folder):
                raise CommandError(unfit(folder))
        install = find_triton()
        backends = link_backends(install, run_dir / "backends")
        libraries = link_libraries(install, run_dir / "libraries")
        super().__init__(health_url=f"http://{ports.host}:{ports.http}/v2/health/ready")
        self.ports = ports
        self._shared_memory_prefix = f"slipstream_{ports.grpc}_{time.monotonic_ns()}_"
        self.child = Child(
            name="Triton",
            command=[
                str(install.binary),
                f"--model-repository={model_repository}",
                f"--backend-directory={backends}",
                f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
                f"--http-address={ports.host}",
                f"--http-port={ports.http}",
                f"--grpc-address={ports.host}",
                f"--grpc-port={ports.grpc}",
                f"--metrics-port={ports.metrics}",
                "--allow-gpu-metrics=false",
                "--disable-auto-complete-config",
                f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            ],
            log_path=run_dir / "triton.log",
            env=triton_environment(libraries),
            cwd=run_dir,  # vLLM searches packages in its working directory
        )

    def wait_ready(self, *, timeout_s: float, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Waits until every model is loaded. False when `stopping()` became true first.

        A server that ended because the machine was too busy is started again. The calling thread must therefore live as
        long as the server.

        Raises:
            CommandError: the server ended, with its own reason, or is not ready `timeout_s` after its last start.
        """
        for _ in range(_RESTARTS):
            try:
                return super().wait_ready(timeout_s=timeout_s, stopping=stopping)
            except CommandError:
                if not was_starved(self.child):
                    raise
            self.restart()
        return super().wait_ready(timeout_s=timeout_s, stopping=stopping)

    def failure(self) -> str:
        """The reason of its failure: the most informative line of its log, on one line."""
        log = "\n".join(line for line in self.child.log_tail(lines=400).splitlines() if _NO_GPU not in line)
        for pattern in _LOAD_FAILURES:
            if found := pattern.search(log):
                # A Python traceback follows, on the same line with escaped line ends.
                return found["why"].partition("\\n")[0].strip().rstrip(";").strip('" ')
        return super().failure()

    def restart(self) -> None:
        """Kills the rest of it, and starts it again on the same ports. Raises `OSError`."""
        self.child.kill()
        self._free_shared_memory()
        self.child.restart()

    def stop(self) -> None:
        """Stops it, waiting for running requests up to Triton's own limit, and frees its shared memory."""
        self.child.stop(timeout_s=EXIT_TIMEOUT_S + 5)
        self._free_shared_memory()

    def _free_shared_memory(self) -> None:
        for region in SHARED_MEMORY.glob(f"{self._shared_memory_prefix}*"):
            region.unlink(missing_ok=True)


def was_starved(child: Child) -> bool:
    """Whether Triton ended while it started only because the machine was too busy."""
    aborted = child.exit_code == -signal.SIGABRT and _STARVED in child.log_tail()
    return aborted or _GIVEN_UP in child.log_tail(lines=400)
