"""The revision of a pair: everything that its servers are started with.

A change of it replaces servers. With `serving.update.canary` the new revision is compared with the serving one first,
and until then the serving one, in `status.lastGood`, is the version in effect.
"""

from __future__ import annotations

import msgspec

from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.fingerprint import beyond_defaults, written_hash
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.serving import Canary, Serving

_NOT_STARTED_WITH = ("replicas", "autoscaling", "inference_pool", "update", "startup_seconds", "drain_seconds")
"""The fields of `serving` that servers are not started with, or that do not change their answers."""


def revision_of(pair: ModelPair) -> str:
    """The revision as 16 hexadecimal digits. Fields at their default are left out, so that a version with more fields
    gives the same digits."""
    spec = pair.spec
    defaults = {name: getattr(Serving(), name) for name in _NOT_STARTED_WITH}
    parts = (spec.target, spec.draft, spec.engine, msgspec.structs.replace(pair.serving, **defaults))
    return written_hash(spec.max_draft_tokens, *map(beyond_defaults, parts))


def canary_of(pair: ModelPair) -> Canary | None:
    """The comparison that a new revision of `pair` needs; None if it replaces the servers at once."""
    return pair.serving.update.canary


def needs_canary(new: ModelPair, serving: ModelPair) -> bool:
    """Whether `new` is compared with the version `serving` before it replaces it: it has another revision, and both are
    started by the operator, with the same kind of engine and the same key and for the same model name, so that requests
    for the one can go to the other."""
    one, other = new.spec.engine, serving.spec.engine
    return (
        canary_of(new) is not None
        and isinstance(one, SlipstreamEngine | VllmEngine)
        and isinstance(other, SlipstreamEngine | VllmEngine)
        and (type(one), one.endpoints, other.endpoints) == (type(other), (), ())
        and _api_key_env(one) == _api_key_env(other)
        and new.spec.model == serving.spec.model
        and revision_of(new) != revision_of(serving)
    )


def _api_key_env(engine: SlipstreamEngine | VllmEngine) -> str | None:
    return engine.api_key_env if isinstance(engine, VllmEngine) else None
