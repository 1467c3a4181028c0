"""The command line of `slipstream gateway`: options are generated from the settings, and `checks` has the checks that
types cannot make. Options that are no settings are defined here."""

from __future__ import annotations

import argparse

import msgspec
from slipstream_core.arguments import add_options, read_options
from slipstream_core.environment import telemetry_settings
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
)

from slipstream_tools.gateway.options import source

_GROUPS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "access": (AccessSettings,),
    "admin paths: /metrics, /console, /v1/evidence, the inside of /v1/route": (AdminSettings,),
    "upstreams": (TlsSettings, UpstreamSettings),
    "limits of each gateway": (Limits, Deadlines),
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
    from slipstream_tools.gateway.options import checks  # needs the packages of the gateway; --help does not

    cluster, admin, access = source.cluster_of(args), checks.admin_of(args), checks.access_of(args)
    checks.check_ext_proc(args)
    checks.check_files(args)
    listeners = [("--host", args.host), ("--admin-host", admin.host), *checks.ext_proc_host(args)]
    checks.check_exposure(listeners, allowed=args.allow_anonymous or access.enabled)
    redis_url = source.redis_of(args)
    checks.check_kill_switch(admin, in_cluster=cluster is not None, has_keys=access.enabled)
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
        capture_store=checks.capture_store_of(args),
        access=access,
        admin=admin,
        upstreams=checks.upstreams_of(args),
        audit=checks.audit_of(args),
    )
