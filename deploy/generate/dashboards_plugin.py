"""The page on the plugin alone, without a gateway: its own metrics on vLLM's port, by class of requests."""

from __future__ import annotations

from deploy.generate.dashboards import total
from deploy.generate.grafana import Json, Panel, Query, Row, Variable, dashboard

SERVER = Variable("instance", "Server", "slipstream_vllm_steps_total")
_S = 'instance=~"$instance"'
_STEPS, _SECONDS = "slipstream_vllm_steps_total", "slipstream_vllm_engine_seconds_total"
_DRAFTED, _ACCEPTED = "slipstream_vllm_draft_tokens_total", "slipstream_vllm_accepted_tokens_total"


def plugin() -> Json:
    return dashboard(
        "slipstream-plugin",
        "Slipstream: plugin",
        "The plugin for vLLM without the gateway: what drafts gain by class, what a class costs, and the kill.",
        (_state(), _gain(), _cost()),
        (SERVER,),
    )


def _per(part: str, whole: str, by: str = "request_class") -> Query:
    """The ratio of two counters' growth, by one label."""
    return Query(f"{total(part, _S, by)} / {total(whole, _S, by)}", f"{{{{{by}}}}}")


def _state() -> Row:
    return Row(
        "Now",
        (
            Panel(
                "Limit",
                "Upper bound for every draft length, by server: num_speculative_tokens, or what PUT /slipstream/limit "
                "set. 0: drafting is killed.",
                (Query(f"min by (instance) (slipstream_vllm_draft_limit{{{_S}}})", "{{instance}}"),),
                width=12,
            ),
            Panel(
                "Draft length",
                "Draft tokens per step, steps without drafts included. 0: the class does not draft.",
                (_per(_DRAFTED, _STEPS),),
                width=12,
            ),
        ),
    )


def _gain() -> Row:
    return Row(
        "Gain, by class",
        (
            Panel(
                "Acceptance",
                "Accepted draft tokens of all drafted. Under 0.3 drafts hardly pay: shorten the class's length.",
                (_per(_ACCEPTED, _DRAFTED),),
                "percentunit",
            ),
            Panel(
                "Tokens per step",
                "Of one request. 1: drafts gain nothing.",
                (_per("slipstream_vllm_tokens_total", _STEPS),),
            ),
            Panel(
                "Acceptance by source",
                "Tokens of the drafter, and copies of the text with slipstream_hybrid.",
                (_per(_ACCEPTED, _DRAFTED, "source"),),
                "percentunit",
            ),
        ),
    )


def _cost() -> Row:
    return Row(
        "Cost, by class",
        (
            Panel(
                "Share of the engine's time",
                "Of the time in which the engines work, by the rows that each class had in every step.",
                (
                    Query(
                        f"{total(_SECONDS, _S, 'request_class')} / on () group_left () {total(_SECONDS, _S)}",
                        "{{request_class}}",
                    ),
                ),
                "percentunit",
                stacked=True,
                width=12,
            ),
            Panel(
                "Tokens",
                "Generated tokens per second.",
                (Query(total("slipstream_vllm_tokens_total", _S, "request_class"), "{{request_class}}"),),
                stacked=True,
                width=12,
            ),
        ),
    )
