"""Validation of a Redis URL, and its form without credentials.

redis://[[user]:password@]host[:port][/db]
rediss://…                                 with TLS; the certificate is verified by default
unix://[[user]:password@]/path[?db=N]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from slipstream_core.errors import CommandError, shorten

_FORM = "redis://host:port/db, rediss://host:port/db or unix:///path"
_ESCAPES = "special characters of a password are percent-encoded: @ is %40, / is %2F, : is %3A, # is %23, ? is %3F"
_DEFAULT_PORT = 6379
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_CHOICES = {"ssl_cert_reqs": ("required", "optional", "none"), "ssl_check_hostname": ("true", "false")}


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A validated URL. `text` contains the credentials; `shown`, `str` and `repr` do not."""

    text: str
    shown: str

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"RedisUrl({self.shown!r})"


def parse_redis_url(text: str) -> RedisUrl:
    """Raises `CommandError` with one line on the problem, without any credential."""
    scheme = text.partition("://")[0]
    if "://" not in text or scheme not in ("redis", "rediss", "unix"):
        raise CommandError(f"the Redis URL must be {_FORM}.")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise _bad(scheme, f"may contain only printable ASCII without spaces; {_ESCAPES}")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # its message may contain a part of the password
        raise _bad(scheme, f"is invalid: a port is a number from 1 to 65535, and {_ESCAPES}") from None
    if "#" in text or "@" in url.path + url.query:
        raise _bad(scheme, f"contains a '#', or an '@' that is not in front of the host; {_ESCAPES}")
    query = _query(url)
    if url.scheme == "unix":
        return RedisUrl(text=text, shown=_unix(url, query))
    if not url.hostname:
        raise _bad(scheme, "has no host")
    if port == 0:
        raise _bad(scheme, "has the port 0; it must be 1 to 65535")
    return RedisUrl(text=text, shown=_tcp(url, port or _DEFAULT_PORT, query))


def _query(url: SplitResult) -> Mapping[str, str]:
    """The options after '?', each known and valid."""
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    for name, value in query.items():
        if name == "db":
            _database(url.scheme, value)
        elif name not in _TLS_FILES and name not in _TLS_CHOICES:
            known = ", ".join(("db", *_TLS_FILES, *_TLS_CHOICES))
            raise _bad(url.scheme, f"has the unknown option '{shorten(name)}'; known options: {known}")
        elif url.scheme != "rediss":
            raise _bad(url.scheme, f"has the option '{name}', which is for rediss:// only")
        elif name in _TLS_FILES and not Path(value).is_file():
            raise _bad(url.scheme, f"has {name}={shorten(value)}, which is not a file")
        elif name in _TLS_CHOICES and value.lower() not in _TLS_CHOICES[name]:
            choices = " or ".join(_TLS_CHOICES[name])
            raise _bad(url.scheme, f"has {name}={shorten(value)}; it must be {choices}")
    return query


def _tcp(url: SplitResult, port: int, query: Mapping[str, str]) -> str:
    path = url.path.strip("/")
    if path and "db" in query:
        raise _bad(url.scheme, "has two databases, in its path and as db=")
    database = _database(url.scheme, path or query.get("db", "0"))
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}:{port}/{database}"


def _unix(url: SplitResult, query: Mapping[str, str]) -> str:
    if url.hostname and not url.username and not url.password:
        raise _bad(url.scheme, f"must be unix:///path with three slashes, not unix://{shorten(url.hostname)}…")
    if not url.path.strip("/"):
        raise _bad(url.scheme, "has no socket file")
    return f"unix://{url.path}?db={query.get('db', '0')}"


def _database(scheme: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise _bad(scheme, f"has the database '{shorten(value)}'; it must be a number such as 0")
    return int(value)


def _bad(scheme: str, what: str) -> CommandError:
    return CommandError(f"the Redis URL {scheme}://… {what}.")
