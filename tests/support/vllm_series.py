"""vLLM's series that dashboards show, with their labels as vLLM 0.32 has them. `tests/vllm/metrics` holds a real server
against them.
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


def series_in_a_cluster() -> dict[str, set[str]]:
    """With the label that the chart's ServiceMonitors add."""
    return {name: labels | {"pair"} for name, labels in VLLM_SERIES.items()}
