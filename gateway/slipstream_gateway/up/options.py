"""The command line of `slipstream up`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from slipstream_gateway.arguments import at_least_one, port, seconds
from slipstream_gateway.manifest import EMBEDDED_MANIFEST
from slipstream_gateway.up.ports import Port

LOOPBACK = "127.0.0.1"


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to bring up, and where it listens. Triton itself is reachable from this machine only."""

    manifest: Path = EMBEDDED_MANIFEST
    host: str = LOOPBACK
    port: int = 8080
    grpc_port: int = 8001
    http_port: int = 8000
    metrics_port: int = 8002
    workers: int = 1
    timeout_s: float = 110.0
    redis: str | None = None
    classifier: Path | None = None
    admin_port: int | None = None
    allow_anonymous: bool = False
    keys: Path | None = None

    def ports(self, *, with_triton: bool) -> list[Port]:
        """Everything that has to be free."""
        ports = [Port(number=self.port, host=self.host, option="--port")]
        if self.admin_port is not None:
            ports.append(Port(number=self.admin_port, host=LOOPBACK, option="--admin-port"))
        if with_triton:
            ports += [
                Port(number=self.grpc_port, host=LOOPBACK, option="--grpc-port"),
                Port(number=self.http_port, host=LOOPBACK, option="--http-port"),
                Port(number=self.metrics_port, host=LOOPBACK, option="--metrics-port"),
            ]
        return ports

    @property
    def url(self) -> str:
        """The gateway's address for a client on this machine."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::", "") else self.host  # nosec B104 # asked for, not listened on
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def console_url(self) -> str:
        """The console's address for a browser on this machine."""
        return f"{self.url}/console" if self.admin_port is None else f"http://{LOOPBACK}:{self.admin_port}/console"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `slipstream up --help` shows; the names are those of `UpOptions`."""
    defaults = UpOptions()
    add = parser.add_argument
    add(
        "-f",
        "--manifest",
        type=Path,
        default=defaults.manifest,
        metavar="FILE",
        help="ModelPairs and policies (without it, the embedded pair)",
    )
    add("--host", default=defaults.host, help="address that the gateway listens on (%(default)s)")
    add(
        "--admin-port",
        type=port,
        metavar="N",
        help="serve console, metrics and evidence on this port of this machine alone (without it: on --port)",
    )
    add(
        "--keys",
        type=Path,
        metavar="FILE",
        help="API keys as 'slipstream keys' writes them (without it everybody who reaches the gateway may use it)",
    )
    add(
        "--allow-anonymous",
        action="store_true",
        help="let everybody in who can reach a --host other than this machine's own",
    )
    for name, default, text in (
        ("--port", defaults.port, "the gateway's port"),
        ("--grpc-port", defaults.grpc_port, "Triton's gRPC port"),
        ("--http-port", defaults.http_port, "Triton's HTTP port"),
        ("--metrics-port", defaults.metrics_port, "Triton's metrics port"),
    ):
        add(name, type=port, default=default, help=f"{text} (%(default)s)")
    add(
        "--workers",
        type=at_least_one,
        default=defaults.workers,
        metavar="N",
        help="processes of the gateway (%(default)s)",
    )
    add(
        "--redis",
        metavar="URL",
        help="where gateways share what they measure, redis://host:port/db; or SLIPSTREAM_REDIS_URL",
    )
    add(
        "--classifier",
        type=Path,
        metavar="FILE",
        help="a model that 'slipstream train' wrote (without it, the one that comes with the package)",
    )
    add(
        "--timeout",
        type=seconds,
        default=defaults.timeout_s,
        dest="timeout_s",
        metavar="SECONDS",
        help="how long loading may take; large checkpoints need more (%(default)s)",
    )
