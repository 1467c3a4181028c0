"""The port of the admin paths."""

from __future__ import annotations

import argparse

from slipstream_core.arguments import port_or_any
from slipstream_core.errors import CommandError
from slipstream_core.settings import AdminSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = AdminSettings()
    group = parser.add_argument_group("admin paths: /metrics, /console, /v1/evidence, the inside of /v1/route")
    group.add_argument(
        "--admin-port",
        type=port_or_any,
        metavar="N",
        help="serve them on a port of their own and nowhere else, 0 for a free one (without it: on --port)",
    )
    group.add_argument(
        "--admin-host", default=defaults.host, metavar="HOST", help="address of the admin port (%(default)s)"
    )
    group.add_argument(
        "--open-metrics", action="store_true", help="/metrics on the admin port asks for no key, for a Prometheus"
    )
    group.add_argument(
        "--kill-switch",
        action="store_true",
        help="with --source kubernetes and --keys: the console turns kill switches of pairs by this process's account",
    )


def settings_of(args: argparse.Namespace) -> AdminSettings:
    if args.admin_port is None:
        for option, name in (("open_metrics", "--open-metrics"),):
            if getattr(args, option):
                raise CommandError(f"{name} is for the admin port: give --admin-port N too.", exit_code=2)
        if args.admin_host != AdminSettings().host:
            raise CommandError("--admin-host is for the admin port: give --admin-port N too.", exit_code=2)
    elif args.admin_port == args.port and args.port:
        # Even on another address: a request's side is told by the port that it came in by.
        raise CommandError(f"--admin-port and --port are both {args.port}.", exit_code=2)
    return AdminSettings(
        port=args.admin_port, host=args.admin_host, open_metrics=args.open_metrics, kill_switch=args.kill_switch
    )


def check_kill_switch(settings: AdminSettings, *, in_cluster: bool, has_keys: bool) -> None:
    """The account may do more than whoever reaches the port: it acts for those alone who show an admin's key. Raises
    `CommandError`."""
    if settings.kill_switch and not in_cluster:
        raise CommandError(
            "--kill-switch is for --source kubernetes: beside a manifest file it is always there.", exit_code=2
        )
    if settings.kill_switch and not has_keys:
        raise CommandError("--kill-switch needs --keys: without them anybody could stop speculation.", exit_code=2)
