"""Which servers manifests may name, and what goes there besides requests."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import TlsSettings, UpstreamSettings
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules
from slipstream_gateway.upstreams.tls import read_credentials

SHARED_KEY_VARIABLES = ("*_API_KEY",)
"""Where a manifest's authors are not the gateway's operators, as in a cluster."""
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_OF_ONE_HOP = ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
_OF_THE_BODY = ("content-length", "content-type", "content-encoding", "accept-encoding")
_OF_CALLERS = ("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key")
_OF_OURS = ("host", "expect", "traceparent", "tracestate", "x-request-timeout")
_NEVER_FORWARDED = frozenset((*_OF_ONE_HOP, *_OF_THE_BODY, *_OF_CALLERS, *_OF_OURS))  # RFC 9110, section 7.6.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("upstreams")
    group.add_argument(
        "--upstream-ca",
        type=Path,
        metavar="FILE",
        help="PEM certificates of the authorities that upstreams are believed by (without it: the system's)",
    )
    group.add_argument(
        "--upstream-cert", type=Path, metavar="FILE", help="PEM certificate to show to upstreams that ask (mTLS)"
    )
    group.add_argument("--upstream-key", type=Path, metavar="FILE", help="its key; files are read again on a change")
    group.add_argument(
        "--allow-endpoint",
        action="append",
        default=[],
        metavar="CIDR|SUFFIX",
        help="manifests may name servers in this network or domain (10.0.0.0/8, .models.svc) and no others; may be "
        "repeated",
    )
    group.add_argument(
        "--allow-key-env",
        action="append",
        metavar="PATTERN",
        help="manifests may name environment variables like this in apiKeyEnv; may be repeated (without it: any with "
        "a manifest file; with --source kubernetes *_API_KEY and those of --grants)",
    )
    group.add_argument(
        "--forward-header",
        action="append",
        default=[],
        metavar="NAME",
        help="a request header that goes on to HTTP upstreams; may be repeated",
    )


def settings_of(args: argparse.Namespace) -> UpstreamSettings:
    """Raises `CommandError` where a file, a network or a header cannot be used."""
    if (args.upstream_cert is None) != (args.upstream_key is None):
        raise CommandError("--upstream-cert and --upstream-key go together.", exit_code=2)
    files = [path.absolute() if path else None for path in (args.upstream_ca, args.upstream_cert, args.upstream_key)]
    tls = TlsSettings(ca=files[0], certificate=files[1], key=files[2])
    read_credentials(tls)
    EndpointRules(args.allow_endpoint)
    granted = tuple(read_grants(args.grants).api_keys) if args.grants else ()
    key_variables = (*SHARED_KEY_VARIABLES, *granted) if args.source == "kubernetes" else ("*",)
    return UpstreamSettings(
        tls=tls,
        endpoints=tuple(args.allow_endpoint),
        key_variables=tuple(args.allow_key_env or key_variables),
        forwarded_headers=tuple(dict.fromkeys(map(_header, args.forward_header))),
    )


def _header(text: str) -> str:
    name = str(text).lower()
    if not _HEADER.fullmatch(name):
        raise CommandError(f"--forward-header {text!r}: not a header's name.", exit_code=2)
    if name in _NEVER_FORWARDED:
        raise CommandError(f"--forward-header {name}: it belongs to this connection or names a caller.", exit_code=2)
    return name
