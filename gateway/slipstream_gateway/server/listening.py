"""The addresses on which a gateway listens: bound before any worker starts, so that one that is in use is one clear
message and not a dead worker."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec
from slipstream_core import logs
from slipstream_core.errors import CommandError
from slipstream_core.listeners import admin_ports, authority, available_host, bound_socket, split_authority
from slipstream_core.settings import GatewaySettings

from slipstream_gateway.server.bounds import tune

BACKLOG = 2048
_UNIX = "unix:"


def on_available_hosts(settings: GatewaySettings) -> GatewaySettings:
    """`settings` with 0.0.0.0 in place of `::` on a machine without IPv6: every worker gets the same addresses."""
    address = settings.ext_proc
    if address is not None and not address.startswith(_UNIX):
        host, port = split_authority(address)
        address = authority(available_host(host), port)
    return msgspec.structs.replace(
        settings,
        host=available_host(settings.host),
        admin=msgspec.structs.replace(settings.admin, host=available_host(settings.admin.host)),
        ext_proc=address,
    )


def admin_listeners(settings: GatewaySettings, public: socket.socket) -> list[socket.socket]:
    """A listener for the admin paths of each worker, on ports that follow each other; none if they are on the public
    port."""
    ports = admin_ports(settings.admin.port, settings.workers, public=settings.port)
    listeners = [listen(settings.admin.host, port) for port in ports]
    for listener in listeners:
        check_apart(public, listener)
        logs.tell(f"admin paths on http://{shown(listener)}")
    return listeners


def check_apart(public: socket.socket, admin: socket.socket) -> None:
    """Raises `CommandError` if both listeners have the same port on different addresses, as a free port that was
    requested may turn out to be. The port that accepted a request determines its side."""
    if public.getsockname()[1] == admin.getsockname()[1]:
        raise CommandError(
            f"--port ({shown(public)}) and --admin-port ({shown(admin)}) have the same port; "
            "give each a number of its own."
        )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that an address in use is one clear message and not a dead worker."""
    with contextlib.ExitStack() as failed:
        try:
            listener = failed.enter_context(bound_socket(host, port))
            tune(listener)
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise CommandError(f"cannot listen on {authority(host, port)}: {reason}.") from exc
        failed.pop_all()
    return listener


def check_free(address: str) -> None:
    """Raises `CommandError` if `address` is not available: a worker would fail later, with a traceback."""
    if not address.startswith(_UNIX):
        listen(*split_authority(address)).close()
        return
    path = Path(address.removeprefix(_UNIX))
    try:
        if path.is_socket() and not _is_served(path):  # left behind by an earlier process; it is replaced
            return
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(os.fspath(path))
        path.unlink()
    except OSError as exc:
        raise CommandError(f"cannot listen on {address}: {exc.strerror or exc}.") from exc


def _is_served(path: Path) -> bool:
    """Whether a process listens on the socket file `path`."""
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(os.fspath(path)) == 0


def shown(listener: socket.socket) -> str:
    return authority(*listener.getsockname()[:2])
