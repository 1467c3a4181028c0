"""The overview page, the page on speculation, and the PromQL helpers of both."""

from __future__ import annotations

from deploy.generate.grafana import CLASS, PAIR, Json, Panel, Query, Row, dashboard

_P = 'pair=~"$pair"'
_PC = 'pair=~"$pair", class=~"$class"'
RANGE = "[$__rate_interval]"


def total(series: str, labels: str = "", by: str = "") -> str:
    """The sum of a counter's growth per second, over Grafana's interval for the page's resolution."""
    return f"{_sum(by)}(rate({_selected(series, labels)}{RANGE}))"


def mean(gauge: str, labels: str, by: str) -> str:
    return f"avg by ({by}) ({_selected(gauge, labels)})"


def quantile(q: float, histogram: str, labels: str = "", by: str = "arm") -> Query:
    expression = f"histogram_quantile({q}, {total(f'{histogram}_bucket', labels, f'le, {by}')})"
    return Query(expression, f"{{{{{by}}}}}", exemplar=True)


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"


def _selected(series: str, labels: str) -> str:
    return f"{series}{{{labels}}}" if labels else series


def ratio(numerator: str, denominator: str) -> str:
    """0 without any counts."""
    return f"({numerator} or vector(0)) / {denominator}"


REQUESTS = "slipstream_requests_total"
DURATION = "gen_ai_server_request_duration_seconds"
TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
_BAD = 'status!~"ok|cancelled|client_timeout|invalid_request"'

# Reasons by category.
_UNPROFITABLE = "short_output|rare_tokens|hot_sampling|long_context|break_even|cost"
_FORBIDDEN = (
    "kill_switch|rolled_back|statistics_stale|pair_not_ready|speculative_unavailable"
    "|engine_cannot|engine_not_lossless|engine_unverified|pressure"
)

_ALL = total(REQUESTS, _P)
_GLANCE = Row(
    "At a glance",
    (
        Panel("Requests", "Requests with a decision.", (Query(_ALL),), "reqps", stat=True, width=4),
        Panel(
            "Speculating",
            "Share of the requests that are decoded speculatively.",
            (Query(ratio(total(REQUESTS, f'{_P}, arm="speculative"'), _ALL)),),
            "percentunit",
            stat=True,
            width=4,
        ),
        Panel(
            "Speed-up",
            "Time of a control answer over that of a speculative one: the mean over pairs and classes.",
            (Query(f'avg(slipstream_effect_speed_up{{{_P}, statistic="ratio"}})'),),
            stat=True,
            width=4,
        ),
        Panel(
            "Acceptance",
            "Accepted draft tokens, of all proposed.",
            (
                Query(
                    total("slipstream_accepted_tokens_total", _P) + " / " + total("slipstream_drafted_tokens_total", _P)
                ),
            ),
            "percentunit",
            stat=True,
            width=4,
        ),
        Panel(
            "Failed",
            "Share of failed requests, not counting errors of the client.",
            (Query(ratio(total(REQUESTS, f"{_P}, {_BAD}"), _ALL)),),
            "percentunit",
            stat=True,
            width=4,
            red_above=0.01,
        ),
        Panel(
            "Killed",
            "Requests that a kill switch keeps from speculating.",
            (Query(total(REQUESTS, f'{_P}, reason="kill_switch"') + " or vector(0)"),),
            "reqps",
            stat=True,
            width=4,
            red_above=0.001,
        ),
    ),
)


def _overview_decisions() -> Row:
    return Row(
        "Decisions",
        (
            Panel(
                "Requests by arm",
                "Control: requests that would have speculated, held back for comparison.",
                (Query(total(REQUESTS, _P, "arm"), "{{arm}}"),),
                "reqps",
                stacked=True,
                width=12,
            ),
            Panel(
                "Decisions by reason",
                "Reason codes are explained in the reference of reasons.",
                (Query(total(REQUESTS, _P, "reason"), "{{reason}}"),),
                "reqps",
                stacked=True,
                width=12,
            ),
        ),
    )


def _overview_latency() -> Row:
    return Row(
        "Latency by arm",
        (
            Panel("Answer, p95", "Whole answers.", (quantile(0.95, DURATION, f'{_P}, error_type=""'),), "s"),
            Panel("Time to first token, p95", "Streamed answers.", (quantile(0.95, TTFT, _P),), "s"),
            Panel(
                "Time per output token, p95",
                "After the first, of streamed answers with one choice.",
                (quantile(0.95, TPOT, _P),),
                "s",
            ),
        ),
    )


def _overview_gateways() -> Row:
    return Row(
        "Gateways",
        (
            Panel(
                "Load",
                "Requests in flight and queued per gateway.",
                (
                    Query("sum by (pod) (slipstream_requests_in_flight)", "{{pod}} in flight"),
                    Query("sum by (pod) (slipstream_requests_queued)", "{{pod}} queued"),
                ),
            ),
            Panel(
                "Sharing by Redis",
                "1 while Redis responds. Otherwise outcomes are buffered.",
                (
                    Query("min by (pod) (slipstream_store_connected)", "{{pod}} connected"),
                    Query("sum by (pod) (slipstream_store_buffered)", "{{pod}} buffered"),
                ),
            ),
            Panel(
                "Age of the configuration",
                "Time since the last update from the source of the manifest, the channel that delivers a kill.",
                (Query("max by (pod) (slipstream_config_age_seconds)", "{{pod}}"),),
                "s",
            ),
        ),
    )


def overview() -> Json:
    return dashboard(
        "slipstream",
        "Slipstream",
        "Decisions, their effect, and the state of the gateways.",
        (_GLANCE, _overview_decisions(), _overview_latency(), _overview_gateways()),
        (PAIR,),
    )


def _speculation_effects() -> Row:
    return Row(
        "Effect of speculation, by class",
        (
            Panel(
                "Speed-up",
                "Control over speculative, whole answers, with the 95 % interval. Below 1 speculation is slower.",
                (_effect("speed_up"),),
                width=12,
            ),
            Panel(
                "Time of an answer",
                "Speculative minus control, with the 95 % interval. Above 0 speculation is slower.",
                (_effect("e2e_seconds"),),
                "s",
                width=12,
            ),
            Panel("Time to first token", "Speculative minus control.", (_difference("ttft_seconds"),), "s"),
            Panel("Time per output token", "Speculative minus control.", (_difference("tpot_seconds"),), "s"),
            Panel(
                "Cost of an answer",
                "Speculative minus control, if the manifest has prices.",
                (_difference("cost"),),
                "currencyUSD",
            ),
            Panel(
                "Servers' time saved",
                "By speculative answers since the gateways' start, against the control's mean, with its interval.",
                (Query(mean("slipstream_saved_server_seconds", _PC, "pair, class, statistic"), _WITH_BOUNDS),),
                "s",
            ),
        ),
    )


_WITH_BOUNDS = "{{pair}} {{class}} {{statistic}}"


def _effect(name: str) -> Query:
    """An effect with the bounds of its interval."""
    return Query(mean(f"slipstream_effect_{name}", _PC, "pair, class, statistic"), _WITH_BOUNDS)


def _difference(name: str) -> Query:
    """An effect without its interval."""
    return Query(
        mean(f"slipstream_effect_{name}", f'{_PC}, statistic="difference"', "pair, class"), "{{pair}} {{class}}"
    )


def _speculation_drafts() -> Row:
    accepted, drafted = (
        total(f"slipstream_{kind}_tokens_total", _PC, "pair, class") for kind in ("accepted", "drafted")
    )
    speculative = f'{_PC}, arm="speculative"'
    return Row(
        "Drafts",
        (
            Panel(
                "Acceptance by class",
                "Accepted draft tokens, of all proposed.",
                (
                    Query(
                        f"{accepted} / {drafted}",
                        "{{pair}} {{class}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Tokens per step",
                "Tokens per pass of the target. 1 is plain decoding.",
                (
                    Query(
                        total("slipstream_output_tokens_total", speculative, "pair, class")
                        + " / "
                        + total("slipstream_target_steps_total", speculative, "pair, class"),
                        "{{pair}} {{class}}",
                    ),
                ),
            ),
            Panel(
                "Parity",
                "Greedy speculative answers replayed plainly, and those that differ: should be 0.",
                (
                    Query(total("slipstream_parity_checked_total", _PC), "checked"),
                    Query(total("slipstream_parity_mismatched_total", _PC), "mismatched"),
                    Query(total("slipstream_parity_dropped_total", _PC, "cause"), "dropped: {{cause}}"),
                ),
                "reqps",
            ),
        ),
    )


def _speculation_decisions() -> Row:
    return Row(
        "Decisions",
        (
            Panel(
                "Not paying, by reason",
                "Requests kept plain by the break-even or by the policy's rules.",
                (Query(total(REQUESTS, f'{_PC}, reason=~"{_UNPROFITABLE}"', "reason"), "{{reason}}"),),
                "reqps",
                stacked=True,
            ),
            Panel(
                "Held back and explored",
                "Cost of measuring: control answers, and explorations.",
                (Query(total(REQUESTS, f'{_PC}, reason=~"hold_back|exploration|rollout"', "reason"), "{{reason}}"),),
                "reqps",
            ),
            Panel(
                "Not permitted",
                "Kill switch, rollback, stale statistics, a missing draft, or pressure.",
                (Query(total(REQUESTS, f'{_PC}, reason=~"{_FORBIDDEN}"', "reason"), "{{reason}}"),),
                "reqps",
            ),
        ),
    )


def speculation() -> Json:
    return dashboard(
        "slipstream-speculation",
        "Slipstream: speculation",
        "Where speculation pays, by how much, and the reasons of decisions.",
        (_speculation_effects(), _speculation_drafts(), _speculation_decisions()),
        (PAIR, CLASS),
    )
