"""The JSON schema of both kinds, from the same types that parse them: the source of the CRDs."""

from __future__ import annotations

from typing import Any

import msgspec

from slipstream_gateway.manifest.objects import ModelPair, SpeculationPolicy


def schema() -> dict[str, dict[str, Any]]:
    """`{kind: JSON schema}`, draft 2020-12, with the descriptions and bounds of every field."""
    return {kind.__name__: msgspec.json.schema(kind) for kind in (ModelPair, SpeculationPolicy)}
