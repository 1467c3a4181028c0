"""The page on serving: latency, errors, failover, servers' health and pressure."""

from __future__ import annotations

from deploy.generate.dashboards import DURATION, REQUESTS, TPOT, TTFT, quantile, total
from deploy.generate.grafana import PAIR, Json, Panel, Query, Row, dashboard

_P = 'pair=~"$pair"'


def serving() -> Json:
    return dashboard(
        "slipstream-serving",
        "Slipstream: serving",
        "How fast answers are, what fails and what is saved, and how close to its limits everything runs.",
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
                "Requests that did not end well",
                "By how they ended; `cancelled` is a client that left.",
                (Query(total(REQUESTS, f'{_P}, status!="ok"', "status"), "{{status}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Resumed streams",
                "Streams whose server died: taken over by another one, or why not.",
                (Query(total("slipstream_resumed_total", _P, "cause, result"), "{{cause}}: {{result}}"),),
                "reqps",
            ),
            Panel(
                "Attempts that an upstream failed",
                "By server. Most of them no client notices.",
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
                "Workers that leave a server's arm out at the moment. Replicas count from 0, as the manifest has them.",
                (Query(f"sum by (pair, arm, replica) ({open_arms})", "{{pair}} #{{replica}} {{arm}}"),),
            ),
            Panel(
                "Ejections",
                "How often a server's arm was left out, and for what.",
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
                "Malformed requests, unknown models, and too much at once.",
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
                "Share of the places that is taken, 1 while requests wait: drafts shrink above 0.7 and end at 0.9, but "
                "for those that are measured to pay.",
                (Query(f"max by (pair) (slipstream_admission_pressure{{{_P}}})", "{{pair}}"),),
                "percentunit",
            ),
            Panel(
                "Latency against the usual",
                "How many times as long as usual first tokens take.",
                (Query(f"max by (pair) (slipstream_admission_latency_ratio{{{_P}}})", "{{pair}}"),),
            ),
            Panel(
                "Mean wait for a place",
                "Of those that had to wait.",
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
                "Refused for want of a place",
                "By cause. These get 429, with the time to come back.",
                (Query(total("slipstream_admission_refused_total", _P, "pair, cause"), "{{pair}}: {{cause}}"),),
                "reqps",
                stacked=True,
            ),
        ),
    )
