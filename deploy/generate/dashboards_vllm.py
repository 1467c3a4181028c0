"""The page on vLLM's servers: the engine's own metrics beside the gateway's, by pair.

Series of servers have the label `pair` as the gateway writes it, which the chart's ServiceMonitors add. The names are
those of vLLM 0.32, https://docs.vllm.ai/en/latest/usage/metrics.html.
"""

from __future__ import annotations

from deploy.generate.dashboards import TPOT, TTFT, quantile, total
from deploy.generate.grafana import PAIR, Json, Panel, Query, Row, dashboard

_P = 'pair=~"$pair"'
_GATEWAY, _ENGINE = "{{pair}} gateway", "{{pair}} vLLM"


def vllm() -> Json:
    return dashboard(
        "slipstream-vllm",
        "Slipstream: vLLM",
        "vLLM's own metrics beside the gateway's, by pair: where requests wait, what the cache does, what drafts gain.",
        (_load(), _cache(), _drafts(), _latency()),
        (PAIR,),
    )


def _gauge(name: str, by: str = "pair", how: str = "sum") -> str:
    return f"{how} by ({by}) ({name}{{{_P}}})"


def _load() -> Row:
    return Row(
        "Load",
        (
            Panel(
                "In flight and waiting at the gateway",
                "Requests that the gateway has sent to servers, and those that wait for a place.",
                (
                    Query(_gauge("slipstream_admission_in_flight"), "{{pair}} in flight"),
                    Query(_gauge("slipstream_admission_queued"), "{{pair}} waiting"),
                ),
            ),
            Panel(
                "Running and waiting in vLLM",
                "Requests in the batches of all servers, and those that vLLM holds back because its batch or its "
                "cache is full.",
                (
                    Query(_gauge("vllm:num_requests_running"), "{{pair}} running"),
                    Query(_gauge("vllm:num_requests_waiting"), "{{pair}} waiting"),
                ),
            ),
            Panel(
                "Tokens",
                "Tokens per second of all servers: read from prompts, and generated.",
                (
                    Query(total("vllm:prompt_tokens_total", _P, "pair"), "{{pair}} prompts"),
                    Query(total("vllm:generation_tokens_total", _P, "pair"), "{{pair}} answers"),
                ),
            ),
        ),
    )


def _cache() -> Row:
    return Row(
        "Cache",
        (
            Panel(
                "KV cache in use",
                "Share of each server's cache. Near 1, vLLM preempts requests and computes them again.",
                (Query(_gauge("vllm:kv_cache_usage_perc", "pair, pod", "max"), "{{pair}} {{pod}}"),),
                "percentunit",
            ),
            Panel(
                "Prefix cache hits",
                "Share of the prompts' tokens that were in the cache.",
                (
                    Query(
                        total("vllm:prefix_cache_hits_total", _P, "pair")
                        + " / "
                        + total("vllm:prefix_cache_queries_total", _P, "pair"),
                        "{{pair}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Preemptions",
                "Requests that lost their place in the cache, by server.",
                (Query(total("vllm:num_preemptions_total", _P, "pair, pod"), "{{pair}} {{pod}}"),),
                "ops",
            ),
        ),
    )


def _drafts() -> Row:
    drafts = total("vllm:spec_decode_num_drafts_total", _P, "pair")
    return Row(
        "Drafts",
        (
            Panel(
                "Acceptance",
                "Accepted draft tokens of all drafted. The gateway counts per answer; vLLM counts the rows that it "
                "verifies, with the padding of answers that begin, so that its share is lower.",
                (
                    Query(
                        total("slipstream_accepted_tokens_total", _P, "pair")
                        + " / "
                        + total("slipstream_drafted_tokens_total", _P, "pair"),
                        _GATEWAY,
                    ),
                    Query(
                        total("vllm:spec_decode_num_accepted_tokens_total", _P, "pair")
                        + " / "
                        + total("vllm:spec_decode_num_draft_tokens_total", _P, "pair"),
                        _ENGINE,
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Acceptance by position",
                "Share of vLLM's drafts whose token at this position was accepted; positions count from 0. A steep "
                "fall: shorter drafts cost less and gain the same.",
                (
                    Query(
                        total("vllm:spec_decode_num_accepted_tokens_per_pos_total", _P, "pair, position")
                        + f" / on (pair) group_left {drafts}",
                        "{{pair}} {{position}}",
                    ),
                ),
                "percentunit",
            ),
            Panel(
                "Draft tokens",
                "Per second: drafted and accepted in vLLM, and drafted by the gateway's count.",
                (
                    Query(total("vllm:spec_decode_num_draft_tokens_total", _P, "pair"), "{{pair}} vLLM drafted"),
                    Query(total("vllm:spec_decode_num_accepted_tokens_total", _P, "pair"), "{{pair}} vLLM accepted"),
                    Query(total("slipstream_drafted_tokens_total", _P, "pair"), "{{pair}} gateway drafted"),
                ),
            ),
        ),
    )


def _latency() -> Row:
    return Row(
        "Latency",
        (
            *_both(
                "Time to first token",
                "The gateway's is longer by its own queue and the network.",
                TTFT,
                "vllm:time_to_first_token_seconds",
            ),
            Panel(
                "Wait in vLLM",
                "Of requests between their arrival at a server and their first place in a batch, p99.",
                (_quantile(0.99, "vllm:request_queue_time_seconds", _ENGINE),),
                "s",
            ),
            *_both(
                "Time between tokens",
                "The gateway's: per output token after the first. vLLM's: between two steps, each of which may give "
                "several tokens.",
                TPOT,
                "vllm:inter_token_latency_seconds",
            ),
        ),
    )


def _both(title: str, text: str, of_gateway: str, of_engine: str) -> tuple[Panel, ...]:
    """The median and the p99 of a time, at the gateway and in vLLM."""
    return tuple(
        Panel(
            f"{title}, {name}",
            text,
            (_quantile(q, of_gateway, _GATEWAY), _quantile(q, of_engine, _ENGINE)),
            "s",
        )
        for q, name in ((0.5, "median"), (0.99, "p99"))
    )


def _quantile(q: float, histogram: str, legend: str) -> Query:
    return quantile(q, histogram, _P, "pair")._replace(legend=legend)
