"""Where the keys of a token issuer may come from."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from slipstream_core.errors import CommandError


def check_location(location: str) -> bool:
    """Whether it is a URL, else it is a file. Raises `CommandError` where a URL is not to be trusted."""
    if "://" not in location:
        return False
    try:
        url = urlsplit(location)
        host, _ = url.hostname or "", url.port
    except ValueError as exc:
        raise CommandError(f"jwt.jwks: {location!r} is no URL: {exc}") from exc
    if url.username is not None or url.password is not None:
        raise CommandError("jwt.jwks: the URL has credentials; keys of an issuer are public.")
    if url.scheme == "https" and host:
        return True
    if url.scheme == "http" and _is_loopback(host):
        return True
    raise CommandError(f"jwt.jwks: must be an https URL (http on the loopback alone) or a file, is {location!r}.")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
