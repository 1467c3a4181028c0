"""`slipstream gateway`: serves a manifest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from slipstream_gateway.errors import CommandError
from slipstream_gateway.manifest import load_file
from slipstream_gateway.settings import Deadlines, GatewaySettings, Limits, telemetry_settings

_LEVELS = ("critical", "error", "warning", "info", "debug")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    limits, deadlines = Limits(), Deadlines()
    parser.add_argument("-f", "--manifest", type=Path, required=True, metavar="FILE", help="ModelPairs and policies")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8080, help="port to listen on, 0 for a free one (%(default)s)")
    parser.add_argument("--workers", type=_at_least_one, default=1, metavar="N", help="processes (%(default)s)")
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="PAIR=URL",
        help="upstream address of a pair instead of the manifest's, e.g. acme=grpc://host:8001; may be repeated",
    )
    group = parser.add_argument_group("limits of one worker")
    for name, kind, default, text in (
        ("--max-body-bytes", _at_least_one, limits.max_body_bytes, "largest request body"),
        ("--max-in-flight", _at_least_one, limits.max_in_flight, "requests that run at once"),
        ("--max-queued", _not_negative, limits.max_queued, "requests that wait for a place; beyond it: 429"),
        ("--queue-timeout", _seconds, limits.queue_timeout_s, "longest wait for a place, in seconds"),
        ("--drain", _seconds, limits.drain_s, "how long streams may finish after SIGTERM, in seconds"),
        ("--connect-timeout", _seconds, deadlines.connect_s, "deadline to reach an upstream, in seconds"),
        ("--first-chunk-timeout", _seconds, deadlines.first_chunk_s, "deadline of a stream's first chunk"),
        ("--chunk-timeout", _seconds, deadlines.between_chunks_s, "deadline between two chunks"),
        ("--total-timeout", _seconds, deadlines.total_s, "deadline of a whole request"),
    ):
        group.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} (%(default)s)")
    parser.add_argument("--log-level", choices=_LEVELS, default="warning", help="what is logged (%(default)s)")


def run(args: argparse.Namespace) -> int:
    table = load_file(args.manifest)  # fails here with one clear message, not inside a worker
    endpoints = _endpoints(args.endpoint, [route.pair.metadata.name for route in table.routes.values()])
    settings = GatewaySettings(
        manifest=args.manifest.absolute(),
        host=args.host,
        port=args.port,
        workers=args.workers,
        log_level=args.log_level,
        endpoints=endpoints,
        deadlines=Deadlines(
            connect_s=args.connect_timeout,
            first_chunk_s=args.first_chunk_timeout,
            between_chunks_s=args.chunk_timeout,
            total_s=args.total_timeout,
        ),
        limits=Limits(
            max_body_bytes=args.max_body_bytes,
            max_in_flight=args.max_in_flight,
            max_queued=args.max_queued,
            queue_timeout_s=args.queue_timeout,
            drain_s=args.drain,
        ),
        telemetry=telemetry_settings(),
    )
    from slipstream_gateway.serve import serve  # uvicorn and the rest load only for a manifest that is good

    serve(settings)
    return 0


def _endpoints(values: Sequence[str], pairs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """`PAIR=URL` options by pair."""
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        pair, separator, url = value.partition("=")
        if not separator or not url.startswith(("grpc://", "http://", "https://")):
            raise CommandError(f"--endpoint {value}: expected PAIR=grpc://host:port or PAIR=http://…", exit_code=2)
        if pair not in pairs:
            raise CommandError(f"--endpoint {value}: the manifest has no ModelPair '{pair}'.", exit_code=2)
        found[pair] = (*found.get(pair, ()), url)
    return found


def _port(text: str) -> int:
    value = _not_negative(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"expected 0 to 65535, got {text}")
    return value


def _not_negative(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def _at_least_one(text: str) -> int:
    value = _not_negative(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value
