"""Where the audit log goes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from slipstream_core.errors import CommandError
from slipstream_core.settings import AuditSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--audit-log",
        metavar="FILE",
        help="decisions and events as JSON lines, without prompts; - for stdout (without it: none)",
    )


def settings_of(args: argparse.Namespace) -> AuditSettings:
    """Raises `CommandError` where the file cannot be written."""
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
