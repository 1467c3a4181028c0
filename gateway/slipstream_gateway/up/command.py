"""`slipstream up`: check everything, start Triton and the gateway, say how to use them, stop both."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from slipstream_gateway.access import load_keyring
from slipstream_gateway.errors import CommandError
from slipstream_gateway.gateway_options.listening import check_exposure
from slipstream_gateway.manifest import ModelPair, RoutingTable, SlipstreamEngine, load_file
from slipstream_gateway.up.demo import DemoCommand, demo_commands, read_prompts
from slipstream_gateway.up.gateway_process import GatewayProcess
from slipstream_gateway.up.model_repository import write_repository
from slipstream_gateway.up.options import LOOPBACK, UpOptions
from slipstream_gateway.up.ports import check_ports
from slipstream_gateway.up.processes import Child
from slipstream_gateway.up.triton_server import TritonPorts, TritonServer

GATEWAY_READY_S = 20.0
"""Long enough for a gateway on a busy machine, short enough to hear that an external server is not there."""
_WATCH_INTERVAL_S = 0.2


def run(args: argparse.Namespace) -> int:
    """Run `slipstream up` until it is told to stop by Ctrl-C or SIGTERM; 0 then.

    Raises:
        CommandError: something is missing, taken or broken, or ended by itself; nothing is left running.
        ManifestError: the manifest is not good.
    """
    return bring_up(UpOptions(**vars(args)))


def bring_up(options: UpOptions) -> int:
    """The same for parsed options."""
    table = load_file(options.manifest)
    pairs = local_pairs(table)
    check_ports(options.ports(with_triton=bool(pairs)))
    check_exposure([("--host", options.host)], allowed=options.allow_anonymous or options.keys is not None)
    if options.keys is not None:
        load_keyring(options.keys, None)  # a bad file is said at once, not after the models are loaded
    prompts = read_prompts()
    with _stop_signal() as stop, ExitStack() as cleanup:
        run_dir = cleanup.enter_context(_run_folder())
        triton = None
        if pairs:
            repository = write_repository(pairs, manifest_folder=table.folder, folder=run_dir / "model_repository")
            ports = TritonPorts(
                host=LOOPBACK, grpc=options.grpc_port, http=options.http_port, metrics=options.metrics_port
            )
            triton = TritonServer(model_repository=repository, run_dir=run_dir, ports=ports)
            cleanup.callback(triton.stop)
        gateway = GatewayProcess(options=options, run_dir=run_dir)
        cleanup.callback(gateway.stop)
        if not _wait_ready(triton, gateway, options=options, stop=stop):
            return 0
        _say(f"console {options.console_url}")
        model = next(iter(table.routes))
        _announce(demo_commands(prompts, url=options.url, model=model, with_key=options.keys is not None))
        return _watch([gateway.child, *([triton.child] if triton else [])], stop)


def local_pairs(table: RoutingTable) -> list[ModelPair]:
    """The pairs that a local Triton has to serve: Slipstream's engine without an address of its own."""
    return [
        route.pair
        for route in table.routes.values()
        if isinstance(route.pair.spec.engine, SlipstreamEngine) and not route.pair.spec.engine.endpoints
    ]


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A private folder for logs and the model repository; kept only where logs can tell what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-"))
    try:
        yield folder
    except CommandError:
        if any(folder.glob("*.log")):
            _say(f"the logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _wait_ready(
    triton: TritonServer | None, gateway: GatewayProcess, *, options: UpOptions, stop: threading.Event
) -> bool:
    """Wait for both, saying what is going on. False: told to stop meanwhile."""
    started = time.monotonic()
    if triton is not None:
        _say("starting Triton Inference Server and the gateway …")
        if not triton.wait_ready(timeout_s=options.timeout_s, stopping=stop.is_set):
            return False
        _say(f"Triton is ready after {time.monotonic() - started:.1f} s")
    if not gateway.wait_ready(timeout_s=min(options.timeout_s, GATEWAY_READY_S), stopping=stop.is_set):
        return False
    _say(f"the gateway is ready at {options.url} after {time.monotonic() - started:.1f} s")
    return True


def _announce(commands: Sequence[DemoCommand]) -> None:
    for title, command in commands:
        print(f"\n# {title}\n{command}", flush=True)
    print("\nCtrl-C stops everything.", flush=True)


def _watch(children: Sequence[Child], stop: threading.Event) -> int:
    """Wait until told to stop, or until a child ends, which ends the command."""
    while not stop.wait(_WATCH_INTERVAL_S):
        for child in children:
            if (status := child.exit_status()) is not None:
                raise CommandError(f"{child.name} {status}; the end of its log:", tail=child.log_tail())
    _say("stopping …")
    return 0


def _say(text: str) -> None:
    print(f"slipstream: {text}", file=sys.stderr, flush=True)
