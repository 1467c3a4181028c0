"""The page and its files, read once from this package."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

PAGE = "page.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


class Asset(NamedTuple):
    """One file with its type and its entity tag."""

    data: bytes
    media_type: str
    tag: str


def load_assets() -> dict[str, Asset]:
    """The files by name."""
    folder = files("slipstream_gateway.console") / "page"
    found = {}
    for item in folder.iterdir():
        media_type = _TYPES.get(item.name.rpartition(".")[2])
        if media_type is not None:
            data = item.read_bytes()
            found[item.name] = Asset(data, media_type, f'"{sha256(data).hexdigest()[:16]}"')
    return found
