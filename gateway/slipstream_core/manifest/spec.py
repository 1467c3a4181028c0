"""The base of the types that manifests are written in."""

from __future__ import annotations

import msgspec


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of a manifest: immutable, without unknown fields, and with names in camelCase."""
