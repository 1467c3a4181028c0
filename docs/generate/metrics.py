"""The reference of metrics, as gateway and operator expose them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from docs.generate.exposed import gateway_metrics, operator_metrics
from docs.generate.markdown import page, table

_HEAD = ("Metric", "Type", "Labels", "Meaning")
_HIDDEN = {"le"}


def metrics() -> str:
    return page(
        "Metrics",
        "`/metrics` has Prometheus' text format, or OpenMetrics with exemplars if the scraper asks for it, as "
        "Prometheus does. Exemplars link to traces. By OTLP, metrics have OpenTelemetry's names, with dots. Label "
        "values are from closed sets or from the manifest, so no client can add a series. The `gen_ai_*` metrics "
        "follow OpenTelemetry's conventions for generative AI.",
        "## Gateway",
        _rows(gateway_metrics()),
        "## Operator",
        "The operator has its own `/metrics`, which also has the usual figures of a process.",
        _rows(operator_metrics()),
    )


def _rows(families: Iterable[Metric]) -> str:
    return table(_HEAD, [_row(family) for family in sorted(families, key=lambda family: family.name)])


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = sorted({label for sample in family.samples for label in sample.labels} - _HIDDEN)
    return f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation
