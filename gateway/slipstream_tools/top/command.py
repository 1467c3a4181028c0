"""The command: one frame, or a screen that keeps up with the gateway until Ctrl-C."""

from __future__ import annotations

import argparse
import time
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live
from slipstream_core.errors import CommandError
from slipstream_core.settings import secret

from slipstream_tools.top.figures import Figures, figures_of
from slipstream_tools.top.screen import frame
from slipstream_tools.top.source import Lost, Source

AGAIN_AFTER_S = 1.0
_DEFAULT_URL = "http://127.0.0.1:8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default=_DEFAULT_URL, help="the gateway, by its admin port where it has one (%(default)s)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="the environment variable that holds an admin's key")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(args: argparse.Namespace) -> int:
    """0 at its end by Ctrl-C, too. Raises `CommandError`."""
    source = Source(_url(args.url), _key(args.key_env))
    console = Console()
    try:
        figures = figures_of(source.once())
        if args.once:
            console.print(frame(figures))
        else:
            _watch(source, console, figures)
    except KeyboardInterrupt:
        pass
    finally:
        source.close()
    return 0


def _watch(source: Source, console: Console, figures: Figures) -> None:
    """Until Ctrl-C. While the gateway is away, the last figures stay and the screen says so."""
    with Live(frame(figures), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            try:
                for sections in source.follow():
                    figures = figures_of(sections)
                    live.update(frame(figures), refresh=True)
            except Lost as exc:
                live.update(frame(figures, state=f"disconnected: {exc}"), refresh=True)
            time.sleep(AGAIN_AFTER_S)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good:
        raise CommandError(f"--url must be like {_DEFAULT_URL}, got {text!r}", exit_code=2)
    return text.rstrip("/")


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = secret(name)
    if key is None:
        raise CommandError(f"--key-env: the variable {name} is not set", exit_code=2)
    if not key.isascii() or not key.isprintable():
        raise CommandError(f"--key-env: the variable {name} does not hold a key", exit_code=2)
    return key
