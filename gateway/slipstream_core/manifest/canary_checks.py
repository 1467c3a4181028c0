"""Checks of a new revision by other services: webhooks and queries of Prometheus."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slipstream_core.manifest.base import Spec

_URL = Meta(max_length=2048)
_BOUND = Meta(ge=-1e15, le=1e15)


class Webhook(Spec, frozen=True, kw_only=True):
    """A service that judges the revision."""

    url: Annotated[
        str,
        _URL,
        Meta(
            description="Address that gets a POST with the names of check, pair and revisions as JSON. 2xx passes; "
            "redirects, 429, 502, 503 and 504 are no result; others fail."
        ),
    ]


class PrometheusQuery(Spec, frozen=True, kw_only=True):
    """A query whose values must be within bounds."""

    address: Annotated[str, _URL, Meta(description="Address of Prometheus.")]
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="PromQL for a scalar or vector. $(namespace), $(pair), $(revision), $(serving) are replaced.",
        ),
    ]
    min: Annotated[Annotated[float, _BOUND] | None, Meta(description="Least value of each element.")] = None
    max: Annotated[Annotated[float, _BOUND] | None, Meta(description="Largest value of each element.")] = None


class CanaryCheck(Spec, frozen=True, kw_only=True):
    """A check of a new revision while it is compared."""

    name: Annotated[
        str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="Name of the check.")
    ]
    webhook: Annotated[Webhook | None, Meta(description="Check by a webhook.")] = None
    prometheus: Annotated[PrometheusQuery | None, Meta(description="Check by a query of Prometheus.")] = None
    interval_seconds: Annotated[int, Meta(ge=1, le=86_400, description="Interval of the check.")] = 30
    timeout_seconds: Annotated[int, Meta(ge=1, le=60, description="Time for an answer.")] = 10
    failures: Annotated[int, Meta(ge=1, le=100, description="Failures in a row that roll the revision back.")] = 3
