"""The labels of the servers that an operator runs."""

from __future__ import annotations

from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.resources import parse_resource
from slipstream_operator.children.identity import Owner, Software
from slipstream_operator.types import ServingDefaults

from tests.operator.pair_objects import pair_object


def server_labels(software: Software) -> tuple[dict[str, str], dict[str, str]]:
    """Those of the serving revision of a pair, and those of a new one beside it."""
    pair = parse_resource(pair_object()).item
    assert isinstance(pair, ModelPair)
    made = [
        Owner(pair=pair, software=software, defaults=ServingDefaults(), revision=revision).labels
        for revision in ("", "0123456789abcdef")
    ]
    assert made[0] != made[1]
    return made[0], made[1]
