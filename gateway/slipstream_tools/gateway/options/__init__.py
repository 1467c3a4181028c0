"""The command line of `slipstream gateway`, by area. Each module is one area with two functions:
`add_arguments(parser)`, and `settings_of(args)`, which gives its group of the settings or raises `CommandError`."""

from __future__ import annotations

import argparse

from slipstream_core.manifest import RoutingTable
from slipstream_core.settings import GatewaySettings, telemetry_settings

from slipstream_tools.gateway.options import (
    access,
    admin,
    assignment,
    audit,
    classifying,
    conformance,
    limits,
    listening,
    logs,
    overload,
    sharing,
    source,
    state,
    upstreams,
)

_AREAS = (
    source,
    listening,
    access,
    admin,
    upstreams,
    sharing,
    assignment,
    state,
    classifying,
    limits,
    overload,
    conformance,
    logs,
    audit,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for area in _AREAS:
        area.add_arguments(parser)


def settings_of(args: argparse.Namespace, table: RoutingTable | None) -> GatewaySettings:
    """All of it. `table` is that of the manifest file, where there is one."""
    cluster, admin_settings = source.cluster_of(args), admin.settings_of(args)
    access_settings = access.settings_of(args)
    listening.check_exposure(
        [("--host", args.host), ("--admin-host", admin_settings.host)],
        allowed=args.allow_anonymous or access_settings.enabled,
    )
    redis_url = sharing.settings_of(args)
    admin.check_kill_switch(admin_settings, in_cluster=cluster is not None, has_keys=access_settings.enabled)
    return GatewaySettings(
        manifest=args.manifest.absolute() if cluster is None else None,
        cluster=cluster,
        endpoints=source.endpoints_of(args, table) if table is not None else {},
        local_endpoints=tuple(args.local_endpoint) if args.local_endpoint else None,
        host=args.host,
        port=args.port,
        workers=args.workers,
        log_level=args.log_level,
        deadlines=limits.deadlines_of(args),
        limits=limits.settings_of(args),
        health=overload.health_of(args),
        overload=overload.settings_of(args),
        conformance=conformance.settings_of(args),
        telemetry=telemetry_settings(),
        redis_url=redis_url,
        assignment_secret=assignment.settings_of(args, shares=redis_url is not None or cluster is not None),
        classifier=classifying.settings_of(args),
        access=access_settings,
        admin=admin_settings,
        state_folder=state.settings_of(args),
        upstreams=upstreams.settings_of(args),
        audit=audit.settings_of(args),
    )
