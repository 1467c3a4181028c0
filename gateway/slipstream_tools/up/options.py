"""The command line of `slipstream up`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from slipstream_core.arguments import at_least_one, port, seconds
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST

from slipstream_tools.up.ports import Port
from slipstream_tools.up.vllm_arguments import check_argument

LOOPBACK = "127.0.0.1"
ENGINES = ("slipstream", "vllm")
MODELS = ("embedded", "smollm2")
EXAMPLES = EMBEDDED_MANIFEST.parent
"""The folder with the manifests of the models that are part of the package."""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `slipstream up`. The servers behind the gateway are reachable from this machine only; a port of
    theirs that is None is chosen at the start. `model`: the manifest's model, which is downloaded first. `timeout_s`
    None: the usual time of each kind of server."""

    manifest: Path = EMBEDDED_MANIFEST
    model: str | None = None
    host: str = LOOPBACK
    port: int = 8080
    grpc_port: int | None = None
    http_port: int | None = None
    metrics_port: int | None = None
    workers: int = 1
    timeout_s: float | None = None
    redis: str | None = None
    classifier: Path | None = None
    admin_port: int | None = None
    allow_anonymous: bool = False
    keys: Path | None = None
    vllm_python: Path | None = None
    vllm_arguments: tuple[str, ...] = ()

    def ports(self) -> list[Port]:
        """The given ports, which must be free."""
        named = (
            (self.port, self.host, "--port"),
            (self.admin_port, LOOPBACK, "--admin-port"),
            (self.grpc_port, LOOPBACK, "--grpc-port"),
            (self.http_port, LOOPBACK, "--http-port"),
            (self.metrics_port, LOOPBACK, "--metrics-port"),
        )
        return [Port(number=number, host=host, option=option) for number, host, option in named if number is not None]

    @property
    def url(self) -> str:
        """The gateway's address for a client on this machine."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::", "") else self.host  # nosec B104 # asked for, not listened on
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def admin_url(self) -> str:
        """The address of the admin paths for this machine."""
        return self.url if self.admin_port is None else f"http://{LOOPBACK}:{self.admin_port}"

    @property
    def console_url(self) -> str:
        """The console's address for a browser on this machine."""
        return f"{self.admin_url}/console"


def options_of(args: argparse.Namespace) -> UpOptions:
    """The parsed command line.

    Raises:
        CommandError: `--engine` or `--model` together with a manifest, which has its own.
    """
    values = vars(args)
    engine, model, manifest = values.pop("engine"), values.pop("model"), values.pop("manifest")
    if manifest is not None:
        for option, value in (("--engine", engine), ("--model", model)):
            if value is not None:
                raise CommandError(
                    f"{option} {value} selects a model of the package and cannot be combined with -f, whose manifest "
                    "has its own",
                    exit_code=2,
                )
        return UpOptions(**values, manifest=manifest)
    name = (model or MODELS[0]) + ("-vllm" if engine == "vllm" else "")
    fetched = model if model != MODELS[0] else None
    return UpOptions(**values, manifest=EXAMPLES / f"{name}.yaml", model=fetched)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `slipstream up`; their names are those of `UpOptions`."""
    _add_served(parser)
    _add_addresses(parser)
    _add_processes(parser)
    _add_vllm(parser)


def _add_served(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-f",
        "--manifest",
        type=Path,
        metavar="FILE",
        help="ModelPairs and policies (default: the pair of --model)",
    )
    add(
        "--model",
        choices=MODELS,
        help="pair that is part of the package (embedded), or a small general model that is downloaded once "
        "(smollm2: 93 MB)",
    )
    add(
        "--engine",
        choices=ENGINES,
        help="engine for --model: Slipstream's own in Triton (slipstream), or vLLM with Slipstream's plugin, "
        "which is installed once (vllm: 600 MB to download, 2.5 GB on disk)",
    )


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    defaults, add = UpOptions(), parser.add_argument
    add("--host", default=defaults.host, help="listen address of the gateway (%(default)s)")
    add(
        "--admin-port",
        type=port,
        metavar="N",
        help="serve console, metrics and evidence on this port, for this machine only (default: on --port)",
    )
    add(
        "--keys",
        type=Path,
        metavar="FILE",
        help="key file from 'slipstream keys' (default: every client that reaches the gateway may use it)",
    )
    add(
        "--allow-anonymous",
        action="store_true",
        help="permit requests without API keys on a --host that other machines can reach",
    )
    add("--port", type=port, default=defaults.port, help="the gateway's port (%(default)s)")
    for name, text in (("grpc", "gRPC"), ("http", "HTTP"), ("metrics", "metrics")):
        add(f"--{name}-port", type=port, metavar="N", help=f"Triton's {text} port (default: a free one)")


def _add_processes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--workers",
        type=at_least_one,
        default=UpOptions().workers,
        metavar="N",
        help="number of worker processes of the gateway (%(default)s)",
    )
    add(
        "--redis",
        metavar="URL",
        help="Redis for sharing measurements between gateways, redis://host:port/db; or SLIPSTREAM_REDIS_URL",
    )
    add(
        "--classifier",
        type=Path,
        metavar="FILE",
        help="model from 'slipstream train' (default: the one in the package)",
    )
    add(
        "--timeout",
        type=seconds,
        dest="timeout_s",
        metavar="SECONDS",
        help="maximum time for loading; large checkpoints need more (default: 110 for Triton and 600 for vLLM)",
    )


def _add_vllm(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with vLLM")
    group.add_argument(
        "--vllm-python",
        type=Path,
        metavar="FILE",
        help="Python of an environment that has vLLM and the package slipstream-vllm (default: one is created in "
        "~/.cache/slipstream)",
    )
    group.add_argument(
        "--vllm-arg",
        action="append",
        type=check_argument,
        default=[],
        dest="vllm_arguments",
        metavar="ARG",
        help="additional argument for vLLM, such as --vllm-arg=--max-model-len=4096; may be repeated",
    )
