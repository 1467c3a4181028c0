"""A vLLM server as a child process: started, watched until ready, stopped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from slipstream_core.manifest.vllm_command import SCHEDULER, Speculation
from slipstream_core.vllm_log import informative_line

from slipstream_tools.up.processes import Child
from slipstream_tools.up.server import Server
from slipstream_tools.up.vllm_environment import NICE, VllmInstall

EXIT_TIMEOUT_S = 10.0
# A socket path has at most 107 characters, and vLLM's names have 37.
_MAX_SOCKET_FOLDER = 64


# Log lines that mark the beginning of a phase, the last phase first.
_PHASES = (
    ("Starting vLLM server", "opening its port"),
    ("Loading weights took", "preparing the cache"),
    ("Starting to load model", "loading the model"),
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("non-default args", "reading the configuration"),
)


class VllmLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server: the folder (or name) `model` under the name `served_name`.

    float32 by default: a CPU without bfloat16 arithmetic converts each weight at each step. `eager` starts in a third
    of the time that compiling takes. `threads` None keeps the install's choice. `plugin` False: stock vLLM, which loads
    no plugin at all.
    """

    model: str
    served_name: str
    speculation: Speculation | None = None
    plugin: bool = True
    dtype: str = "float32"
    max_concurrency: int = 16
    context_tokens: int | None = None
    eager: bool = True
    threads: int | None = None
    extra: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """vLLM's command line without host and port."""
        return [
            *("--model", self.model),
            *("--served-model-name", self.served_name),
            *("--dtype", self.dtype),
            *("--max-num-seqs", str(self.max_concurrency)),
            *(("--max-model-len", str(self.context_tokens)) if self.context_tokens is not None else ()),
            *(("--enforce-eager",) if self.eager else ()),
            *(self.speculation.arguments() if self.speculation is not None else ()),
            *(("--scheduler-cls", SCHEDULER) if self.plugin else ()),
            *self.extra,
        ]

    def environment(self) -> dict[str, str]:
        """The environment variables of this server alone."""
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return threads if self.plugin else {**threads, "VLLM_PLUGINS": ""}


class VllmServer(Server):
    """A running `vllm.entrypoints.openai.api_server`. `run_dir` is private to this server and holds its log."""

    def __init__(
        self,
        *,
        install: VllmInstall,
        launch: VllmLaunch,
        run_dir: Path,
        port: int,
        host: str = "127.0.0.1",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it; it is not ready yet. `env` is added to the environment of `install`."""
        self.launch = launch
        self.url = f"http://{host}:{port}"
        super().__init__(health_url=f"{self.url}/health")
        self._temporary = _short_folder()
        self.child = Child(
            name="vLLM",
            command=[
                *(str(install.python), "-m", "vllm.entrypoints.openai.api_server"),
                *("--host", host),
                *("--port", str(port)),
                *launch.arguments(),
            ],
            log_path=run_dir / f"vllm-{port}.log",
            env={
                **install.environment(),
                "TMPDIR": str(self._temporary),
                **launch.environment(),
                **(env or {}),
            },
            # `python -m` searches packages in the working directory, and vLLM would take a folder `triton` for the
            # package.
            cwd=run_dir,
            nice=NICE,
        )

    def phase(self) -> str:
        """The present phase of its start, from its log."""
        log = self.child.log_tail(lines=1000)
        return next((phase for mark, phase in _PHASES if mark in log), "importing vLLM")

    def failure(self) -> str:
        """The reason of its failure: the most informative line of its log."""
        return informative_line(self.child.log_tail(lines=1000)) or "its log is empty"

    def stop(self) -> None:
        """Stops it and the engine's processes, waiting for running requests up to `EXIT_TIMEOUT_S`."""
        self.child.stop(timeout_s=EXIT_TIMEOUT_S)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _short_folder() -> Path:
    """A separate folder for the server's sockets, because vLLM does not delete them."""
    parent = tempfile.gettempdir()
    fits = len(parent) <= _MAX_SOCKET_FOLDER - len("/vllm-01234567")
    short = parent if fits else "/tmp"  # nosec B108 # the folder in it is private
    return Path(tempfile.mkdtemp(prefix="vllm-", dir=short))
