"""The page on serving: latency, errors, failover, servers' health and pressure."""

from __future__ import annotations

from deploy.generate.dashboards import DURATION, REQUESTS, TPOT, TTFT, quantile, total
from deploy.generate.grafana import PAIR, Json, Panel, Query, Row, dashboard

_P = 'pair=~"$pair"'


def serving() -> Json:
    return dashboard(
        "slipstream-serving",
        "Slipstream: serving",
        "Latency of answers, failures, failover, and load relative to the limits.",
        (_latency(), _failures(), _health(), _pressure()),
        (PAIR,),
    )


def _latency() -> Row:
    whole = f'{_P}, error_type=""'
    panels = [
        Panel(f"{title}, {name}", text, (quantile(q, histogram, labels),), "s")
        for q, name in ((0.5, "median"), (0.99, "p99"))
        for title, text, histogram, labels in (
            ("Answer", "Whole answers, by arm.", DURATION, whole),
            ("Time to first token", "Streamed answers, by arm.", TTFT, _P),
            ("Time per output token", "After the first, by arm.", TPOT, _P),
        )
    ]
    return Row("Latency", tuple(panels))


def _failures() -> Row:
    return Row(
        "Failures",
        (
            Panel(
                "Failed requests",
                "By status; `cancelled`: the client disconnected.",
                (Query(total(REQUESTS, f'{_P}, status!="ok"', "status"), "{{status}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Resumed streams",
                "Streams whose server failed: resumed on another server, or the reason why not.",
                (Query(total("slipstream_resumed_total", _P, "cause, result"), "{{cause}}: {{result}}"),),
                "reqps",
            ),
            Panel(
                "Failed attempts by server",
                "Most of them are retried without an effect on clients.",
                (
                    Query(
                        f"topk(20, {total('slipstream_upstream_errors_total', by='endpoint, error')})",
                        "{{endpoint}}: {{error}}",
                    ),
                ),
                "reqps",
            ),
        ),
    )


def _health() -> Row:
    open_arms = f'slipstream_replica_state{{{_P}, state="open"}} > 0'
    return Row(
        "Health of the servers",
        (
            Panel(
                "Left out",
                "Gateways that have ejected a server's arm at present. Replicas count from 0, in the order of the "
                "manifest.",
                (Query(f"sum by (pair, arm, replica) ({open_arms})", "{{pair}} #{{replica}} {{arm}}"),),
            ),
            Panel(
                "Ejections",
                "Ejections of a server's arm, by cause.",
                (
                    Query(
                        total("slipstream_replica_ejections_total", _P, "arm, replica, cause"),
                        "#{{replica}} {{cause}} {{arm}}",
                    ),
                ),
                "ops",
            ),
            Panel(
                "Retries",
                "Attempts beyond a request's first: those that the budget allowed or refused, and second attempts of "
                "slow requests.",
                (Query(total("slipstream_retries_total", by="result"), "retry: {{result}}"),),
                "ops",
            ),
        ),
    )


def _pressure() -> Row:
    return Row(
        "Pressure",
        (
            Panel(
                "Refused before a decision",
                "Malformed requests, unknown models, and overload.",
                (Query(total("slipstream_rejections_total", by="error"), "{{error}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "In flight, waiting, and the limit",
                "Over all gateways. The limit follows the latency of first tokens.",
                (
                    Query(f"sum by (pair) (slipstream_admission_in_flight{{{_P}}})", "{{pair}} in flight"),
                    Query(f"sum by (pair) (slipstream_admission_queued{{{_P}}})", "{{pair}} waiting"),
                    Query(f"sum by (pair) (slipstream_admission_limit{{{_P}}})", "{{pair}} limit"),
                ),
            ),
            Panel(
                "Pressure",
                "Share of taken places, 1 while requests wait: drafts are shortened above 0.7 and end at 0.9, except "
                "those that are measured to pay.",
                (Query(f"max by (pair) (slipstream_admission_pressure{{{_P}}})", "{{pair}}"),),
                "percentunit",
            ),
            Panel(
                "Latency against the usual",
                "Time to first token relative to the usual one.",
                (Query(f"max by (pair) (slipstream_admission_latency_ratio{{{_P}}})", "{{pair}}"),),
            ),
            Panel(
                "Mean wait for a place",
                "Of queued requests.",
                (
                    Query(
                        total("slipstream_admission_wait_seconds_total", _P, "pair")
                        + " / "
                        + total("slipstream_admission_waited_total", _P, "pair"),
                        "{{pair}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Refused for lack of capacity",
                "By cause. These requests get 429 with a retry time.",
                (Query(total("slipstream_admission_refused_total", _P, "pair, cause"), "{{pair}}: {{cause}}"),),
                "reqps",
                stacked=True,
            ),
        ),
    )
