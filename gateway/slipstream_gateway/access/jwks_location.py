"""Validation of the location of a token issuer's keys."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from slipstream_core.errors import CommandError


def check_location(location: str) -> bool:
    """Whether the location is a URL; otherwise it is a file. Raises `CommandError` for an untrusted URL."""
    if "://" not in location:
        return False
    try:
        url = urlsplit(location)
        host, _ = url.hostname or "", url.port
    except ValueError as exc:
        raise CommandError(f"jwt.jwks: {location!r} is not a URL: {exc}") from exc
    if url.username is not None or url.password is not None:
        raise CommandError("jwt.jwks: the URL contains credentials; remove them, an issuer's keys are public.")
    if url.scheme == "https" and host:
        return True
    if url.scheme == "http" and _is_loopback(host):
        return True
    raise CommandError(f"jwt.jwks: must be an https URL (http on the loopback only) or a file, got {location!r}.")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
