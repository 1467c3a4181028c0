"""Runs the application in uvicorn: workers, signals and the drain."""

from __future__ import annotations

import functools
import logging
import math
import signal
import socket
import tempfile
from pathlib import Path
from types import FrameType

import msgspec
import uvicorn
from slipstream_core import logs
from slipstream_core.settings import GatewaySettings, Limits

from slipstream_gateway.api.monitoring import LIVE, READY
from slipstream_gateway.api.port_router import PortRouter
from slipstream_gateway.app.app import build_app
from slipstream_gateway.server.bounds import SPARE_CONNECTIONS, Bounds
from slipstream_gateway.server.leaving import Leaving, LeavingServer
from slipstream_gateway.server.listening import BACKLOG, admin_listeners, check_free, listen, on_available_hosts, shown
from slipstream_gateway.server.process import give_large_blocks_back, raise_open_files
from slipstream_gateway.server.protocol import bounded_http
from slipstream_gateway.server.supervisor import WorkerServer, supervise

_OTHER_FILES = 128  # listeners, logs, Redis, the manifest, worker pipes
_KEEP_ALIVE_S = 75
_PROBES = frozenset({LIVE.encode(), READY.encode()})


def serve(settings: GatewaySettings, *, manifest: bytes | None) -> None:
    """Serves until SIGTERM or SIGINT, and after SIGTERM for `limits.leave_s`. Returns when the last stream has ended or
    the drain limit has passed. A second signal of the same kind ends the process at once, even if it hangs. `manifest`
    is the valid manifest that was read at the start; None without a manifest file.

    Raises `CommandError` if the address is not available, or if workers no longer start.
    """
    settings = on_available_hosts(settings)
    public = listen(settings.host, settings.port)
    logs.tell(f"slipstream gateway on http://{shown(public)}")
    admins = admin_listeners(settings, public)
    if settings.ext_proc is not None:
        check_free(settings.ext_proc)
        logs.tell(f"Envoy's filter on {settings.ext_proc}")
    settings = msgspec.structs.replace(settings, limits=_within_open_files(settings.limits))
    if settings.workers == 1:
        leaving = Leaving(settings.limits.leave_s)
        config = _config(_with_admin_port(settings, *admins), leaving)
        _Server(config, leaving).run(sockets=[public, *admins])
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as folder:
        shared = msgspec.structs.replace(settings, workers_folder=Path(folder))
        if manifest is not None:
            last_good = Path(folder, "last-good.yaml")
            last_good.write_bytes(manifest)
            shared = msgspec.structs.replace(shared, last_good=last_good)
        works = [functools.partial(_work, _with_admin_port(shared, admin), [public, admin]) for admin in admins]
        supervise(works, [public, *admins])


def _with_admin_port(settings: GatewaySettings, listener: socket.socket | None = None) -> GatewaySettings:
    """`settings` with the port that `listener` has, which may have been any free one."""
    if listener is None:
        return settings
    bound = msgspec.structs.replace(settings.admin, port=listener.getsockname()[1])
    return msgspec.structs.replace(settings, admin=bound)


class _Server(LeavingServer):
    """Leaves at SIGTERM, and drains at SIGINT. The kernel handles the second signal of the same kind, so that nothing
    in the process can block it. After the drain the exit is a success: uvicorn would raise the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        signal.signal(sig, signal.SIG_DFL)
        if sig == signal.SIGTERM:
            self.leaving.begin()
        else:
            self.should_exit = True


def _work(settings: GatewaySettings, listeners: list[socket.socket]) -> None:
    """Runs one of several gateways."""
    logs.configure(settings.log_level, settings.log_format)
    leaving = Leaving(settings.limits.leave_s)
    WorkerServer(_config(settings, leaving), leaving).run(sockets=listeners)


def _build(settings: GatewaySettings) -> PortRouter:
    give_large_blocks_back()
    return build_app(settings, owns_process=True)


def _config(settings: GatewaySettings, leaving: Leaving) -> uvicorn.Config:
    return uvicorn.Config(
        functools.partial(_build, settings),
        factory=True,
        loop="uvloop",
        http=bounded_http(Bounds(bodies_bytes=settings.limits.max_bodies_bytes, probes=_PROBES), leaving),
        limit_concurrency=_max_connections(settings.limits),
        ws="none",
        lifespan="on",
        log_level=settings.log_level,
        log_config=None,  # its lines are of the same form as ours
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, math.ceil(settings.limits.drain_s)),
    )


def _max_connections(limits: Limits) -> int:
    """The maximum number of connections of one worker. At this number idle connections are closed, at twice this number
    new ones. Each is one file, and so is each connection to an upstream: with too few files there are fewer, so that
    connections of probes are still accepted."""
    wanted = limits.max_in_flight + limits.max_queued + SPARE_CONNECTIONS
    return min(wanted, max(1, (raise_open_files() - _OTHER_FILES - 2 * limits.max_in_flight) // 2))


def _within_open_files(limits: Limits) -> Limits:
    """`limits` with no more running requests than the files of a worker allow, a third of them for upstreams. Raises
    the number of files to the system's limit, and prints a warning if that is too low."""
    allowed = raise_open_files()
    fitting = min(limits.max_in_flight, max(1, (allowed - _OTHER_FILES) // 6))
    limits = msgspec.structs.replace(limits, max_in_flight=fitting)
    connections, wanted = _max_connections(limits), fitting + limits.max_queued + SPARE_CONNECTIONS
    if connections < wanted:
        effect = f"a worker keeps {connections} connections instead of {wanted}, and runs {fitting} requests at once"
        what = f"open files are limited to {allowed}: {effect}"
        logs.tell(f"{what}. Raise the hard limit (ulimit -Hn).", logging.WARNING)
    return limits
