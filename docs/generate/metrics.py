"""The reference of metrics, as gateway and operator expose them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from docs.generate.exposed import gateway_metrics, operator_metrics
from docs.generate.markdown import listing, page

_HIDDEN = {"le"}
# Labels that OpenTelemetry's conventions give to each of its metrics.
_CONVENTIONAL = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "openai_api_type")


def metrics() -> str:
    return page(
        "Metrics",
        "Names of counters end in `_total`; the others are gauges and histograms. By OTLP, metrics have "
        "OpenTelemetry's names, with dots. Label values are from closed sets or the manifest, so no client can add "
        "a series. The `gen_ai_*` metrics follow OpenTelemetry's conventions for generative AI, with the labels "
        f"{_quoted(_CONVENTIONAL)} besides those listed. [Dashboards and alerts](../howto/monitoring.md) has formats "
        "and exemplars.",
        "## Gateway",
        _rows(gateway_metrics()),
        "## Operator",
        "The operator has its own `/metrics`, which also has the usual figures of a process.",
        _rows(operator_metrics()),
    )


def _rows(families: Iterable[Metric]) -> str:
    """All but the times of creation, which the Prometheus client adds to each metric."""
    found = [family for family in families if not family.name.endswith("_created")]
    return listing(_row(family) for family in sorted(found, key=lambda family: family.name))


def _row(family: Metric) -> tuple[str, str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = sorted({label for sample in family.samples for label in sample.labels} - _HIDDEN - set(_CONVENTIONAL))
    kind = "Histogram. " if family.type == "histogram" else ""
    return f"`{name}`" + (f" ({_quoted(labels)})" if labels else ""), kind + family.documentation


def _quoted(labels: Iterable[str]) -> str:
    return ", ".join(f"`{label}`" for label in labels)
