"""The route of a new revision of a pair, by the operator's status.

A status is untrusted input: with an unreadable one, the new revision gets no requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.revision import revision_of
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus, part_of
from slipstream_core.manifest.table import CanaryRoute, Route, compile_route


def canary_status_of(raw_status: Mapping[str, Any] | None) -> CanaryStatus | None:
    """The state of the new revision in the status of a pair; None without one, or if it is unreadable."""
    return part_of(raw_status, "canary", CanaryStatus)


def canary_route(
    serving: Route, new: ModelPair | None, raw_status: Mapping[str, Any] | None, endpoints: tuple[str, ...]
) -> CanaryRoute | None:
    """The route of the version `new` of the pair in `serving`, with its servers at `endpoints`. None while it gets no
    requests.

    Policy, standing and kill switch are those of the serving version.
    """
    status = canary_status_of(raw_status)
    if new is None or status is None or status.phase is not CanaryPhase.COMPARING or not status.share:
        return None
    if status.revision != revision_of(new):
        return None
    route = compile_route(
        new,
        serving.policy,
        status=serving.status,
        endpoints=endpoints,
        standing=serving.standing,
        killed=serving.killed,
    )
    if not route.plain.endpoints:
        return None
    return CanaryRoute(route=route, revision=status.revision, share=status.share)
