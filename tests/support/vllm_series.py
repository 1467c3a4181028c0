"""Series of vLLM 0.32 and of the plugin that dashboards show, with their labels. `tests/vllm/metrics` holds a real
server against them.
"""

from __future__ import annotations

_SERVER = {"engine", "model_name"}
_BUCKETS = (
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
)
_OTHERS = (
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_drafts_total",
)
VLLM_SERIES: dict[str, set[str]] = {
    **{name: {*_SERVER, "le"} for name in _BUCKETS},
    **dict.fromkeys(_OTHERS, _SERVER),
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": {*_SERVER, "position"},
}
_OF_DRAFTS = {"request_class", "draft_length", "source"}
PLUGIN_SERIES: dict[str, set[str]] = {
    "slipstream_vllm_accepted_tokens_total": _OF_DRAFTS,
    "slipstream_vllm_draft_limit": set(),
    "slipstream_vllm_draft_tokens_total": _OF_DRAFTS,
    "slipstream_vllm_engine_seconds_total": {"request_class"},
    "slipstream_vllm_steps_total": {"request_class"},
    "slipstream_vllm_tokens_total": {"request_class"},
}


def series_in_a_cluster() -> dict[str, set[str]]:
    """With the labels that the chart's ServiceMonitors and Prometheus add."""
    of_vllm = {name: labels | {"pair"} for name, labels in VLLM_SERIES.items()}
    return of_vllm | {name: labels | {"instance"} for name, labels in PLUGIN_SERIES.items()}
