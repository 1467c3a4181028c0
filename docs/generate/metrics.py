"""The reference of metrics, as gateway and operator expose them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric

from docs.generate.exposed import gateway_metrics, operator_metrics
from docs.generate.markdown import page, table

_HEAD = ("Metric", "Type", "Labels", "What it tells")
_HIDDEN = {"le"}


def metrics() -> str:
    return page(
        "Metrics",
        "Served at `/metrics` in Prometheus' text format; in OpenMetrics, with exemplars that lead to traces, for who "
        "asks for it (Prometheus does by itself). By OTLP they have OpenTelemetry's names, with dots. Labels come from "
        "closed sets or from the manifest: no client can add a series. The `gen_ai_*` ones follow OpenTelemetry's "
        "conventions for generative AI.",
        "## Gateway",
        _rows(gateway_metrics()),
        "## Operator",
        "At its own `/metrics`, beside the usual figures of a process.",
        _rows(operator_metrics()),
    )


def _rows(families: Iterable[Metric]) -> str:
    return table(_HEAD, [_row(family) for family in sorted(families, key=lambda family: family.name)])


def _row(family: Metric) -> tuple[str, str, str, str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = sorted({label for sample in family.samples for label in sample.labels} - _HIDDEN)
    return f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation
