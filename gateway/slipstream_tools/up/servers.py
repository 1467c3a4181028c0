"""The servers behind the gateway on this machine: one Triton for all of its pairs, and one vLLM per vLLM pair."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from slipstream_core.manifest import ModelPair, RoutingTable, SlipstreamEngine, VllmEngine

from slipstream_tools.up.cache import Report
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.options import LOOPBACK, UpOptions
from slipstream_tools.up.ports import free_ports
from slipstream_tools.up.supervisor import Supervisor
from slipstream_tools.up.triton_server import TritonPorts, TritonServer
from slipstream_tools.up.vllm_environment import VllmInstall
from slipstream_tools.up.vllm_pairs import launch_of, vllm_pairs
from slipstream_tools.up.vllm_server import VllmServer

TRITON_READY_S = 110.0
VLLM_READY_S = 600.0
_REPORT_S = 30.0


def local_pairs(table: RoutingTable) -> list[ModelPair]:
    """The pairs for a local Triton: Slipstream's engine, or vLLM inside Triton, without an address of its own."""
    return [route.pair for route in table.routes.values() if _needs_triton(route.pair)]


def _needs_triton(pair: ModelPair) -> bool:
    engine = pair.spec.engine
    if isinstance(engine, VllmEngine):
        return engine.serving == "triton" and not engine.endpoints
    return isinstance(engine, SlipstreamEngine) and not engine.endpoints


def with_ports(options: UpOptions, table: RoutingTable) -> UpOptions:
    """`options` with a free port wherever the Triton of `table` needs one and none is given."""
    if not local_pairs(table):
        return options
    grpc, http, metrics = free_ports(3, host=LOOPBACK)
    return msgspec.structs.replace(
        options,
        grpc_port=options.grpc_port or grpc,
        http_port=options.http_port or http,
        metrics_port=options.metrics_port or metrics,
    )


class LocalServers:
    """The running servers of one routing table. `has_vllm`: vLLM serves one of its pairs. `addresses` has the URL of
    each pair's own vLLM, by the pair's name; Triton's ports are in `options`, see `with_ports`."""

    def __init__(self, table: RoutingTable, *, options: UpOptions, run_dir: Path, vllm: VllmInstall | None) -> None:
        """Starts them; they are not ready yet. `vllm` is None if no pair needs it.

        Raises:
            CommandError: a checkpoint folder is missing, or Triton is not installed; no process runs then.
        """
        self.has_vllm = vllm is not None
        self._timeout_s = options.timeout_s
        self._triton: TritonServer | None = None
        self._triton_ready_s = TRITON_READY_S if vllm is None else VLLM_READY_S
        self._vllm: dict[str, VllmServer] = {}
        try:
            self._start_triton(table, options, run_dir, vllm)
            if vllm is not None:
                self._start_vllm(table, options, run_dir, vllm)
        except BaseException:
            self.stop()
            raise

    @property
    def _servers(self) -> list[TritonServer | VllmServer]:
        return [server for server in (self._triton, *self._vllm.values()) if server is not None]

    @property
    def addresses(self) -> Mapping[str, str]:
        return {name: server.url for name, server in self._vllm.items()}

    def wait_ready(self, *, report: Report, stopping: Callable[[], bool]) -> bool:
        """Waits until all have loaded their models, with progress lines. False: `stopping()` became true first.

        Raises:
            CommandError: one ended, with its own reason, or is not ready in time.
        """
        started = time.monotonic()
        if self._triton is not None:
            if not self._triton.wait_ready(timeout_s=self._timeout_s or self._triton_ready_s, stopping=stopping):
                return False
            report(f"Triton is ready after {time.monotonic() - started:.1f} s")
        for name, server in self._vllm.items():
            watch = _Reporting(server, name, report, stopping)
            if not server.wait_ready(timeout_s=self._timeout_s or VLLM_READY_S, stopping=watch):
                return False
            report(f"vLLM is ready with {name} after {time.monotonic() - started:.1f} s")
        return True

    def supervisors(self, report: Report) -> list[Supervisor]:
        """One for each, once all are ready."""
        limits = {TritonServer: self._triton_ready_s, VllmServer: VLLM_READY_S}
        return [
            Supervisor(server, start_limit_s=self._timeout_s or limits[type(server)], report=report)
            for server in self._servers
        ]

    def stop(self) -> None:
        """Stops all of them: requests the termination of all, then waits for each."""
        for server in self._servers:
            server.child.terminate()
        for server in self._servers:
            server.stop()

    def _start_triton(self, table: RoutingTable, options: UpOptions, run_dir: Path, vllm: VllmInstall | None) -> None:
        pairs = local_pairs(table)
        if not pairs or options.grpc_port is None or options.http_port is None or options.metrics_port is None:
            return
        repository = write_repository(
            pairs,
            manifest_folder=table.folder,
            folder=run_dir / "model_repository",
            vllm=vllm,
            vllm_arguments=options.vllm_arguments,
        )
        ports = TritonPorts(host=LOOPBACK, grpc=options.grpc_port, http=options.http_port, metrics=options.metrics_port)
        self._triton = TritonServer(model_repository=repository, run_dir=run_dir, ports=ports)

    def _start_vllm(self, table: RoutingTable, options: UpOptions, run_dir: Path, install: VllmInstall) -> None:
        pairs = vllm_pairs(table)
        for pair, port in zip(pairs, free_ports(len(pairs), host=LOOPBACK), strict=True):
            name = pair.metadata.name
            launch = launch_of(pair, manifest_folder=table.folder, extra=options.vllm_arguments)
            folder = run_dir / f"vllm-{name}"
            folder.mkdir()
            self._vllm[name] = VllmServer(install=install, launch=launch, run_dir=folder, port=port)


class _Reporting:
    """A `stopping` callback, polled all the time, that also prints a line for each phase of the server and one every
    `_REPORT_S`."""

    def __init__(self, server: VllmServer, name: str, report: Report, stopping: Callable[[], bool]) -> None:
        self._server, self._name, self._report, self._stopping = server, name, report, stopping
        self._began = time.monotonic()
        self._reported = -_REPORT_S
        self._phase = ""

    def __call__(self) -> bool:
        elapsed_s, phase = time.monotonic() - self._began, self._server.phase()
        if phase != self._phase or elapsed_s - self._reported >= _REPORT_S:
            self._phase, self._reported = phase, elapsed_s
            self._report(f"{elapsed_s:4.0f} s: vLLM for {self._name}: {phase}")
        return self._stopping()
