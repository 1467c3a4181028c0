"""Where replicas share what they measure."""

from __future__ import annotations

import argparse
import importlib.util

from slipstream_core.errors import CommandError
from slipstream_core.settings import redis_url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="where replicas share what they measure, redis://host:port/db; a URL with a password is better put into "
        "SLIPSTREAM_REDIS_URL (without either: every worker learns by itself)",
    )


def settings_of(args: argparse.Namespace) -> str | None:
    """The address. Raises `CommandError` where it is none, or the package that speaks to it is missing."""
    url: str | None = args.redis or redis_url()
    if url is None:
        return None
    from slipstream_core.redis.redis_url import parse_redis_url

    parse_redis_url(url)
    if importlib.util.find_spec("redis") is None:
        raise CommandError("--redis needs the package 'redis': install 'slipstream-serving[redis]'.")
    return url
