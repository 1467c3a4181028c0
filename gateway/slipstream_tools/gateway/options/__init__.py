"""The command line of `slipstream gateway`. Options are generated from the settings; here are the checks across them,
and the options that are no settings."""

from __future__ import annotations

import argparse

import msgspec
from slipstream_core.arguments import add_options, read_options
from slipstream_core.errors import CommandError
from slipstream_core.manifest import RoutingTable
from slipstream_core.settings import (
    AccessSettings,
    AdminSettings,
    AuditSettings,
    ConformanceSettings,
    Deadlines,
    GatewaySettings,
    HealthSettings,
    Limits,
    OverloadSettings,
    TlsSettings,
    UpstreamSettings,
    telemetry_settings,
)

from slipstream_tools.gateway.options import source, values

_GROUPS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "access": (AccessSettings,),
    "admin paths: /metrics, /console, /v1/evidence, the inside of /v1/route": (AdminSettings,),
    "upstreams": (TlsSettings, UpstreamSettings),
    "limits of one worker": (Limits, Deadlines),
    "overload and health": (OverloadSettings, HealthSettings),
    "conformance": (ConformanceSettings,),
    "audit": (AuditSettings,),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source.add_arguments(parser)
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="listen without --keys on an address that other machines can reach",
    )
    for title, settings in _GROUPS.items():
        add_options(parser.add_argument_group(title), *settings)


def settings_of(args: argparse.Namespace, table: RoutingTable | None) -> GatewaySettings:
    """All settings. `table` is that of the manifest file, if there is one. Raises `CommandError`."""
    cluster, admin, access = source.cluster_of(args), _admin_of(args), values.access_of(args)
    values.check_exposure(
        [("--host", args.host), ("--admin-host", admin.host)], allowed=args.allow_anonymous or access.enabled
    )
    redis_url = source.redis_of(args)
    _check_kill_switch(admin, in_cluster=cluster is not None, has_keys=access.enabled)
    return read_options(
        args,
        GatewaySettings,
        manifest=args.manifest.absolute() if cluster is None else None,
        cluster=cluster,
        endpoints=source.endpoints_of(args, table) if table is not None else {},
        deadlines=read_options(args, Deadlines),
        limits=read_options(args, Limits),
        health=read_options(args, HealthSettings),
        overload=read_options(args, OverloadSettings),
        conformance=read_options(args, ConformanceSettings),
        telemetry=telemetry_settings(),
        redis_url=redis_url,
        assignment_secret=values.secret_of(args, shares=redis_url is not None or cluster is not None),
        classifier=values.classifier_of(args),
        access=access,
        admin=admin,
        state_folder=values.state_folder_of(args),
        upstreams=values.upstreams_of(args),
        audit=values.audit_of(args),
    )


def _admin_of(args: argparse.Namespace) -> AdminSettings:
    if args.admin_port is None:
        if args.open_metrics:
            raise CommandError("--open-metrics is for the admin port: give --admin-port N too.", exit_code=2)
        if args.admin_host != AdminSettings().host:
            raise CommandError("--admin-host is for the admin port: give --admin-port N too.", exit_code=2)
    elif args.admin_port == args.port and args.port:
        # Even on another address: the port alone decides which paths a request can reach.
        raise CommandError(f"--admin-port and --port are both {args.port}.", exit_code=2)
    return read_options(args, AdminSettings)


def _check_kill_switch(settings: AdminSettings, *, in_cluster: bool, has_keys: bool) -> None:
    """The service account has more rights than clients of the port: it acts only for those with an admin's key."""
    if settings.kill_switch and not in_cluster:
        raise CommandError(
            "--kill-switch is for --source kubernetes: beside a manifest file it is always there.", exit_code=2
        )
    if settings.kill_switch and not has_keys:
        raise CommandError("--kill-switch needs --keys: without them anybody could stop speculation.", exit_code=2)
