"""`slipstream gateway`: serves a manifest, from a file or from a cluster."""

from __future__ import annotations

import argparse
import logging

from slipstream_core import logs
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import compile_file, read_file
from slipstream_core.manifest.kill_file import KillFile, kills_beside

from slipstream_tools.gateway import options as gateway_options
from slipstream_tools.gateway.options import source
from slipstream_tools.gateway.options.checks import check_keys


def run(args: argparse.Namespace) -> int:
    logs.configure(args.log_level, args.log_format)
    source.check(args)
    data = read_file(args.manifest) if args.manifest is not None else None
    # A bad manifest fails here with one clear message, not inside a worker.
    table = compile_file(args.manifest, data) if data is not None else None
    if table is not None:
        check_keys(table)
    settings = gateway_options.settings_of(args, table)
    if settings.manifest is not None:  # so does a bad file of kill switches: what was stopped must not be guessed
        kills = KillFile(kills_beside(settings.manifest, settings.state_folder))
        kills.refresh()
        _warn_of_storage(kills)
    from slipstream_gateway.server.serve import serve  # uvicorn and the rest load only for a manifest that is good

    serve(settings, manifest=data)
    return 0


def _warn_of_storage(kills: KillFile) -> None:
    """A read-only folder must not prevent a start: kills act without it."""
    try:
        kills.check_storage()
    except ManifestError as exc:
        remedy = "a kill in the console acts, but ends with a restart (set --state-folder to a writable folder)"
        logs.tell(f"slipstream: warning: {exc}; {remedy}", logging.WARNING)
