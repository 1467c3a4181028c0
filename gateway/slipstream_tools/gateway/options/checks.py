"""Checks of the gateway's options that their types cannot make, single and against each other: files, headers,
listeners, secrets, the admin port. They run before a worker starts."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from slipstream_core.arguments import read_options
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.environment import secret
from slipstream_core.errors import CommandError, ManifestError
from slipstream_core.hosts import is_loopback
from slipstream_core.installation import how_to_install
from slipstream_core.listeners import admin_ports
from slipstream_core.manifest import RoutingTable
from slipstream_core.manifest.grants import API_KEY_FIELD, key_uses, read_grants
from slipstream_core.settings import AccessSettings, AdminSettings, AuditSettings, TlsSettings, UpstreamSettings
from slipstream_gateway.decide.classify import load_model
from slipstream_gateway.upstreams.private_headers import PRIVATE
from slipstream_gateway.upstreams.tls import read_credentials

_UNIX = "unix:"
SHARED_KEY_VARIABLES = ("*_API_KEY",)
"""The default in a cluster, where authors of manifests are not operators of the gateway."""
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
# RFC 9110, section 7.6.1
_OF_ONE_HOP = ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
_OF_THE_BODY = ("content-length", "content-type", "content-encoding", "accept-encoding")
_OF_OURS = ("host", "expect", "traceparent", "tracestate", "x-request-timeout")
_NEVER_FORWARDED = frozenset((*_OF_ONE_HOP, *_OF_THE_BODY, *_OF_OURS, "set-cookie", *PRIVATE))


def check_ext_proc(args: argparse.Namespace) -> None:
    """Raises `CommandError` for one socket file and several workers, which cannot share it."""
    if args.ext_proc is not None and args.ext_proc.startswith(_UNIX) and args.workers > 1:
        raise CommandError(f"--ext-proc {args.ext_proc}: a socket file serves one worker; give HOST:PORT.", exit_code=2)


def capture_store_of(args: argparse.Namespace) -> str | None:
    """The store of captured answers; None without one. Raises `CommandError` if it is invalid, or a package is
    missing."""
    location: str | None = args.capture_store
    if location is None:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        image = "; the gateway's image with a tag that ends in -capture has it"
        raise CommandError(f"--capture-store needs the package 'pyarrow'; {how_to_install('drafts')}{image}")
    from slipstream_gateway.capture.store import check_location

    return check_location(location)


def ext_proc_host(args: argparse.Namespace) -> Sequence[tuple[str, str]]:
    """The option and the host on which Envoy's filter listens, if it does."""
    if args.ext_proc is None or args.ext_proc.startswith(_UNIX):
        return ()
    host, _, _ = args.ext_proc.rpartition(":")
    return [("--ext-proc", host.strip("[]"))]


def check_exposure(listeners: Sequence[tuple[str, str]], *, allowed: bool) -> None:
    """Raises `CommandError` if other machines can reach one of `listeners` (option, host), unless that is `allowed`:
    there are keys, or anonymous clients were allowed explicitly."""
    for option, host in listeners:
        if not allowed and not is_loopback(host):
            raise CommandError(
                f"{option} {host}: other machines can reach it, and there are no keys; give --keys FILE, or "
                "--allow-anonymous to let everybody in.",
                exit_code=2,
            )


def access_of(args: argparse.Namespace) -> AccessSettings:
    """Raises `CommandError` if the key file is invalid."""
    if args.keys is None:
        if args.pepper is not None:
            raise CommandError("--pepper is for the keys of --keys FILE.", exit_code=2)
        return AccessSettings()
    from slipstream_gateway.access import KeyFile

    KeyFile(args.keys, args.pepper).load()
    return read_options(args, AccessSettings)


def check_keys(table: RoutingTable) -> None:
    """Raises `ManifestError` for a variable whose API key cannot be sent. It need not be set."""
    for pair in {route.key: route.pair for route in table.routes.values()}.values():
        for use in key_uses(pair):
            try:
                secret(use.variable)
            except CommandError as exc:
                field = f"ModelPair/{pair.metadata.key}: {use.path}.{API_KEY_FIELD}"
                raise ManifestError(str(exc), field=field) from None


def check_files(args: argparse.Namespace) -> None:
    """Raises `CommandError` if the classifier is none, or there is no folder for the state."""
    if args.classifier:
        load_model(args.classifier)
    if args.state_folder is not None and not args.state_folder.is_dir():
        raise CommandError(f"--state-folder {args.state_folder}: there is no such folder.", exit_code=2)


def audit_of(args: argparse.Namespace) -> AuditSettings:
    """Raises `CommandError` if the file cannot be written."""
    if args.audit_log is None:
        return AuditSettings()
    if args.audit_log == "-":
        return AuditSettings(is_on=True)
    file = Path(args.audit_log).absolute()
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as exc:
        raise CommandError(f"--audit-log {file}: {exc.strerror or exc}.") from exc
    return AuditSettings(is_on=True, file=file)


def upstreams_of(args: argparse.Namespace) -> UpstreamSettings:
    """Raises `CommandError` if a file, a network or a header cannot be used."""
    if (args.upstream_cert is None) != (args.upstream_key is None):
        raise CommandError("--upstream-cert and --upstream-key go together.", exit_code=2)
    read_credentials(tls := read_options(args, TlsSettings))
    EndpointRules(args.allow_endpoint or ())
    granted = tuple(read_grants(args.grants).api_keys) if args.grants else ()
    key_variables = (*SHARED_KEY_VARIABLES, *granted) if args.source == "kubernetes" else ("*",)
    return read_options(
        args,
        UpstreamSettings,
        tls=tls,
        key_variables=tuple(args.allow_key_env or key_variables),
        forwarded_headers=tuple(dict.fromkeys(map(_header, args.forward_header or ()))),
    )


def _header(text: str) -> str:
    name = str(text).lower()
    if not _HEADER.fullmatch(name):
        raise CommandError(f"--forward-header {text!r}: not a header's name.", exit_code=2)
    if name in _NEVER_FORWARDED:
        raise CommandError(
            f"--forward-header {name}: it belongs to this connection, names a caller, or acts on others.", exit_code=2
        )
    return name


def admin_of(args: argparse.Namespace) -> AdminSettings:
    if args.admin_port is None:
        if args.open_metrics:
            raise CommandError("--open-metrics is for the admin port: give --admin-port N too.", exit_code=2)
        if args.admin_host != AdminSettings().host:
            raise CommandError("--admin-host is for the admin port: give --admin-port N too.", exit_code=2)
    admin_ports(args.admin_port, args.workers, public=args.port)
    return read_options(args, AdminSettings)


def check_kill_switch(settings: AdminSettings, *, in_cluster: bool, has_keys: bool) -> None:
    """The service account has more rights than clients of the port: it acts only for those with an admin's key."""
    if settings.kill_switch and not in_cluster:
        raise CommandError(
            "--kill-switch is for --source kubernetes: beside a manifest file it is always there.", exit_code=2
        )
    if settings.kill_switch and not has_keys:
        raise CommandError("--kill-switch needs --keys: without them anybody could stop speculation.", exit_code=2)
