"""`slipstream up`: checks all options, installs what is missing, starts the servers and the gateway, prints how to use
them, starts them again if they end, stops them."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from slipstream_core.errors import CommandError

from slipstream_tools.up.demo import DemoCommand, DemoPrompts, demo_commands, general_prompts, read_prompts
from slipstream_tools.up.engine_checks import wait_checked
from slipstream_tools.up.gateway_process import GatewayProcess
from slipstream_tools.up.options import UpOptions, options_of
from slipstream_tools.up.parent_make import ParentMake
from slipstream_tools.up.prepare import Prepared, check, prepare
from slipstream_tools.up.processes import Stopped
from slipstream_tools.up.run_folder import make_run_folder
from slipstream_tools.up.servers import LocalServers
from slipstream_tools.up.supervisor import Supervisor

GATEWAY_READY_S = 20.0
"""Long enough for a gateway on a busy machine, short enough to notice that an external server is missing."""
CHECKED_S = 400.0
"""Longer than a check and, on a slow machine, a second one, which may take twice as long. Only speculation depends on
the check, so nothing fails after this time."""
_LOOK_S = 0.1


def run(args: argparse.Namespace) -> int:
    """Runs `slipstream up` until Ctrl-C or SIGTERM, and returns 0.

    Raises:
        CommandError: something is missing, taken or broken, or a process fails to start; nothing is left running.
        ManifestError: the manifest is invalid.
    """
    return bring_up(options_of(args))


def bring_up(options: UpOptions) -> int:
    """As `run`, for parsed options."""
    check(options)
    prompts = read_prompts() if options.model is None else general_prompts()
    with _stop_signal() as stop, _run_folder() as run_dir:
        try:
            ready = prepare(options, run_dir=run_dir, report=_print, stopping=stop.is_set)
        except Stopped:
            return 0
        return _serve(ready, prompts, run_dir, stop)


class _Stop:
    """Set by the handler of a signal, or if the parent make is interrupted. Not a `threading.Event`: its `set` takes a
    lock, which the interrupted thread may hold itself, in `wait` or in the handler of another signal."""

    def __init__(self) -> None:
        self._is_set = False
        self._make = ParentMake()

    def handle(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set or self._make.is_interrupted()


@contextmanager
def _stop_signal() -> Iterator[_Stop]:
    """Set by Ctrl-C and SIGTERM, and by a SIGINT to the make that runs this command."""
    stop = _Stop()
    previous = {number: signal.signal(number, stop.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A private folder for logs and the model repository; kept only if logs may explain a failure."""
    folder = make_run_folder("slipstream-", report=_print)
    try:
        yield folder
    except CommandError:
        if any(folder.rglob("*.log")):
            _print(f"the logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _serve(ready: Prepared, prompts: DemoPrompts, run_dir: Path, stop: _Stop) -> int:
    """Starts the servers and the gateway, and runs them until stopped."""
    options = ready.options
    with ExitStack() as cleanup:
        servers = LocalServers(ready.table, options=options, run_dir=run_dir, vllm=ready.vllm)
        cleanup.callback(servers.stop)
        _print("starting the servers and the gateway …")
        gateway = GatewayProcess(options=options, run_dir=run_dir, addresses=servers.addresses)
        cleanup.callback(gateway.stop)
        supervisors = _wait_ready(servers, gateway, options=options, stop=stop)
        if supervisors is None:
            return 0
        _print(f"console {options.console_url}")
        _print(f"other commands: {shlex.quote(str(Path(sys.executable).with_name('slipstream')))} --help")
        model = next(iter(ready.table.routes))
        with_key = options.keys is not None
        _announce(demo_commands(prompts, url=options.url, model=model, with_key=with_key))
        return _supervise(supervisors, stop)


def _wait_ready(
    servers: LocalServers, gateway: GatewayProcess, *, options: UpOptions, stop: _Stop
) -> list[Supervisor] | None:
    """Waits for all, with progress lines, and returns their supervisors. None: stopped meanwhile."""
    started = time.monotonic()
    if not servers.wait_ready(report=_print, stopping=stop.is_set):
        return None
    timeout_s = min(options.timeout_s or GATEWAY_READY_S, GATEWAY_READY_S)
    if not gateway.wait_ready(timeout_s=timeout_s, stopping=stop.is_set):
        return None
    _print(f"the gateway is ready at {options.url} after {time.monotonic() - started:.1f} s")
    supervisors = [*servers.supervisors(_print), Supervisor(gateway, start_limit_s=GATEWAY_READY_S, report=_print)]
    if servers.has_vllm:
        _print(
            "checking that vLLM returns the same answers with and without drafts; until then every request decodes "
            "plainly …"
        )

        def stopping() -> bool:
            for supervisor in supervisors:
                supervisor.look()
            return stop.is_set()

        if not wait_checked(gateway, workers=options.workers, timeout_s=CHECKED_S, report=_print, stopping=stopping):
            return None
    return supervisors


def _announce(commands: Sequence[DemoCommand]) -> None:
    for title, command in commands:
        print(f"\n# {title}\n{command}", flush=True)
    print("\n# An answer with the reason hold_back or exploration was drawn for a comparison: ask again", flush=True)
    print("\nCtrl-C stops everything.", flush=True)


def _supervise(supervisors: Sequence[Supervisor], stop: _Stop) -> int:
    """Starts what ends again, until stopped."""
    while not stop.is_set():
        for supervisor in supervisors:
            supervisor.look()
        time.sleep(_LOOK_S)
    _print("stopping …")
    return 0


def _print(text: str) -> None:
    print(f"slipstream: {text}", file=sys.stderr, flush=True)
