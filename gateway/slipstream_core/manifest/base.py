"""The base of the types that manifests are written in, and kinds of values that several of them have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

Label = Annotated[str, Meta(pattern=LABEL_PATTERN, max_length=63)]
"""A DNS label, as Kubernetes' names."""
Share = Annotated[float, Meta(ge=0, le=1)]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of a manifest: immutable, without unknown fields, and with names in camelCase."""
