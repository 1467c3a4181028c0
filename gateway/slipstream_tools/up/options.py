"""The command line of `slipstream up`."""

from __future__ import annotations

import argparse
from typing import Annotated

import msgspec
from slipstream_core.arguments import File, Port, Seconds, add_options, option, read_options
from slipstream_core.errors import CommandError
from slipstream_core.listeners import admin_ports
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.manifest.vllm_command import NO_DATA_PARALLELISM, is_data_parallel, set_by_slipstream
from slipstream_core.settings import CaptureStore, Classifier, KeyFile, Redis, Workers

from slipstream_tools.up.ports import Port as TakenPort

LOOPBACK = "127.0.0.1"
ENGINES = ("slipstream", "vllm")
MODELS = ("embedded", "smollm2")
EXAMPLES = EMBEDDED_MANIFEST.parent
"""Folder of the package's example manifests."""


def check_argument(text: str) -> str:
    """An argument of a user for vLLM; not one that the manifest, or `slipstream up` itself, determines."""
    if is_data_parallel(text):
        raise argparse.ArgumentTypeError(f"{text.partition('=')[0]} {NO_DATA_PARALLELISM}; got {text!r}")
    if set_by_slipstream(text):
        raise argparse.ArgumentTypeError(f"{text.partition('=')[0]} is set by 'slipstream up'; got {text!r}")
    return text


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Servers to start, and their addresses. The servers behind the gateway listen on the loopback only; a port of
    theirs that is None is chosen at start. `model` is downloaded first. `timeout_s` None: the default of each kind of
    server."""

    manifest: Annotated[
        File, option("ModelPairs and policies (default: the pair of --model)", "-f", "--manifest", default=None)
    ] = EMBEDDED_MANIFEST
    model: Annotated[
        str | None,
        option(
            "model pair in the package (embedded), or a small general model that is downloaded once (smollm2: 93 MB)",
            choices=MODELS,
        ),
    ] = None
    host: Annotated[str, option("address that the gateway listens on, :: for every IPv4 and IPv6 address")] = LOOPBACK
    admin_port: Annotated[
        Port | None,
        option("port for console, metrics and evidence, reachable from this machine only (default: --port)"),
    ] = None
    keys: KeyFile = None
    allow_anonymous: Annotated[bool, option("listen without --keys on an address that other machines can reach")] = (
        False
    )
    port: Annotated[Port, option("port of the gateway")] = 8080
    grpc_port: Annotated[Port | None, option("Triton's gRPC port (default: a free one)")] = None
    http_port: Annotated[Port | None, option("Triton's HTTP port (default: a free one)")] = None
    metrics_port: Annotated[Port | None, option("Triton's metrics port (default: a free one)")] = None
    workers: Workers = 1
    redis: Redis = None
    classifier: Classifier = None
    capture_store: CaptureStore = None
    timeout_s: Annotated[
        Seconds | None,
        option("time limit for loading models; large checkpoints need more (default: 110 for Triton, 600 for vLLM)"),
    ] = None
    vllm_python: Annotated[
        File | None,
        option(
            "Python of an environment with vLLM and slipstream-vllm (default: one is created in ~/.cache/slipstream)"
        ),
    ] = None
    vllm_arguments: Annotated[
        tuple[str, ...],
        option(
            "further argument for vLLM, such as --vllm-arg=--max-model-len=4096; may be repeated",
            "--vllm-arg",
            type=check_argument,
            metavar="ARG",
        ),
    ] = ()

    def ports(self) -> list[TakenPort]:
        """The given ports, which must be free."""
        admin = admin_ports(self.admin_port, self.workers, public=self.port)
        named = (
            (self.port, self.host, "--port"),
            *((port, LOOPBACK, "--admin-port") for port in admin),
            (self.grpc_port, LOOPBACK, "--grpc-port"),
            (self.http_port, LOOPBACK, "--http-port"),
            (self.metrics_port, LOOPBACK, "--metrics-port"),
        )
        return [
            TakenPort(number=number, host=host, option=option) for number, host, option in named if number is not None
        ]

    @property
    def url(self) -> str:
        """The gateway's address for a client on this machine."""
        host = LOOPBACK if self.host in ("0.0.0.0", "::", "") else self.host  # nosec B104 # asked for, not listened on
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def admin_url(self) -> str:
        """Address of the admin paths on this machine."""
        return self.url if self.admin_port is None else f"http://{LOOPBACK}:{self.admin_port}"

    @property
    def console_url(self) -> str:
        """The console's address for a browser on this machine."""
        return f"{self.admin_url}/console"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `slipstream up`."""
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="engine for --model: Slipstream's own in Triton (slipstream), or vLLM with Slipstream's plugin, which is "
        "installed once (vllm: 600 MB to download, 2.5 GB on disk)",
    )
    add_options(parser, UpOptions)


def options_of(args: argparse.Namespace) -> UpOptions:
    """The parsed command line.

    Raises:
        CommandError: `--engine` or `--model` together with a manifest, which has its own.
    """
    redis = args.redis or None  # an empty one, as a shell makes it of an unset variable, is none
    if args.manifest is not None:
        for name, value in (("--engine", args.engine), ("--model", args.model)):
            if value is not None:
                raise CommandError(
                    f"{name} {value} selects a model of the package and cannot be combined with -f, "
                    "whose manifest has its own",
                    exit_code=2,
                )
        return read_options(args, UpOptions, manifest=args.manifest, redis=redis)
    name = (args.model or MODELS[0]) + ("-vllm" if args.engine == "vllm" else "")
    fetched = args.model if args.model != MODELS[0] else None
    return read_options(args, UpOptions, manifest=EXAMPLES / f"{name}.yaml", model=fetched, redis=redis)
