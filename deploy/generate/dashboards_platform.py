"""The pages on access and on the operator."""

from __future__ import annotations

from deploy.generate.dashboards import RANGE, quantile, total
from deploy.generate.grafana import Json, Panel, Query, Row, Variable, dashboard


def access() -> Json:
    key = 'key=~"$key"'
    use = Row(
        "Use by key",
        (
            Panel(
                "Requests",
                "Admitted requests. Keys beyond the first thousand are `other`.",
                (Query(f"topk(20, {total('slipstream_access_requests_total', key, 'key')})", "{{key}}"),),
                "reqps",
            ),
            Panel(
                "Tokens",
                "Prompt and answer.",
                (Query(f"topk(20, {total('slipstream_access_tokens_total', key, 'key')})", "{{key}}"),),
            ),
            Panel(
                "Cost in a day",
                "Spending that counts towards a key's budget.",
                (
                    Query(
                        f"topk(20, sum by (key) (increase(slipstream_access_cost_usd_total{{{key}}}[1d])))", "{{key}}"
                    ),
                ),
                "currencyUSD",
            ),
        ),
    )
    denials = Row(
        "Denials and limits",
        (
            Panel(
                "Denied, by cause",
                "No valid key, not allowed, or a limit reached.",
                (Query(total("slipstream_access_denied_total", by="cause"), "{{cause}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Where limits are decided",
                "`redis` is exact over all gateways; `local` is per gateway, while Redis is unreachable.",
                (Query(total("slipstream_limits_decided_total", by="by"), "{{by}}"),),
                "reqps",
            ),
            Panel(
                "Keys",
                "Number of keys loaded per gateway; equal on all of them shortly after a change.",
                (Query("max by (pod) (slipstream_access_keys)", "{{pod}}"),),
            ),
        ),
    )
    return dashboard(
        "slipstream-access",
        "Slipstream: access",
        "Usage per key, and refused requests.",
        (use, denials),
        (Variable("key", "Key", "slipstream_access_requests_total"),),
    )


def _operator_reconciles() -> Row:
    seconds = "slipstream_operator_reconcile_seconds"
    return Row(
        "Reconciles",
        (
            Panel(
                "Reconciles",
                "By kind and result.",
                (Query(total(f"{seconds}_count", by="kind, outcome"), "{{kind}} {{outcome}}"),),
                "ops",
            ),
            Panel(
                "Time of a reconcile, p95",
                "From the start of a reconcile to its last write.",
                (quantile(0.95, seconds, by="kind"),),
                "s",
            ),
            Panel(
                "Writes",
                "Accepted by the API server; few without changes.",
                (Query(total("slipstream_operator_writes_total", by="method, resource"), "{{method}} {{resource}}"),),
                "ops",
            ),
        ),
    )


def _operator_objects() -> Row:
    return Row(
        "Objects",
        (
            Panel(
                "Request classes, by phase",
                "Over all policies: promoted, rolling out, rolled back.",
                (Query("sum by (phase) (slipstream_operator_classes)", "{{phase}}"),),
                stacked=True,
            ),
            Panel(
                "Objects",
                "Known objects by kind, and those whose last reconcile failed.",
                (
                    Query("sum by (kind) (slipstream_operator_objects)", "{{kind}}"),
                    Query("sum(slipstream_operator_objects_failing)", "failing"),
                ),
            ),
            Panel(
                "Behind",
                "Objects in the work queue, and changes that the watch has missed: both should be 0.",
                (
                    Query("sum(slipstream_operator_queue_depth)", "waiting"),
                    Query("sum by (kind) (slipstream_operator_watch_missed)", "missed: {{kind}}"),
                ),
            ),
        ),
    )


def _operator_world() -> Row:
    return Row(
        "Watches and events",
        (
            Panel(
                "Transitions",
                "Transitions (promotions, rollbacks, readiness) with a Kubernetes Event.",
                (
                    Query(
                        f"sum by (kind, reason) (increase(slipstream_operator_transitions_total{RANGE}))",
                        "{{kind}} {{reason}}",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Watch",
                "Events and listed objects.",
                (Query(total("slipstream_operator_watch_events_total", by="kind"), "{{kind}}"),),
                "ops",
                width=6,
            ),
            Panel(
                "Silence of the watch",
                "Time since the watch last delivered an event. Objects are listed again every few minutes.",
                (
                    Query(
                        "time() - max by (kind) (slipstream_operator_watch_last_event_timestamp_seconds > 0)",
                        "{{kind}}",
                    ),
                ),
                "s",
                width=6,
            ),
        ),
    )


def operator() -> Json:
    return dashboard(
        "slipstream-operator",
        "Slipstream: operator",
        "The work of the control plane, and its backlog.",
        (_operator_objects(), _operator_reconciles(), _operator_world()),
    )
