"""The catalogue of metrics, which dashboards, alerts and the reference go by, holds what a running gateway exposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from docs.generate.exposed import gateway_metrics, labels_of
from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S, eventually

# What takes more than a few requests to come about; each area tests its own.
RARE = (
    "slipstream_effect_",
    "slipstream_access_",
    "slipstream_capture_",
    "slipstream_cold_start_",
    "slipstream_saved_",
    "slipstream_draft_",
    "slipstream_limits_",
    "slipstream_replica_ejections",
    "slipstream_replica_longest_draft",
    "slipstream_admission_refused",
    "slipstream_engine_conformance",
    "slipstream_conformance_",
)


def exposed(url: str) -> dict[str, set[str]]:
    answer = httpx.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text"}, timeout=PATIENCE_S)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    return labels_of(list(text_string_to_metric_families(answer.text)))


def test_a_running_gateway_exposes_what_the_catalogue_says(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    server = openai_server()
    server.odd_token = 1
    served = gateway(manifest_text([server.url], [openai_server().url], policy=", parityShare: 1.0"))
    wish = {"x-slipstream-mode": "speculative"}
    url = f"{served.url}/v1/chat/completions"
    for body in (
        chat("tokens=3", temperature=0),
        chat("tokens=3 gap=0.001", stream=True, stream_options={"include_usage": True}),
        chat("tokens=5 die=3", stream=True),
        chat("status=500"),
        {"no": "model"},
    ):
        httpx.post(url, json=body, headers=wish, timeout=PATIENCE_S)
    known = labels_of(gateway_metrics())
    late = {name for name in known if name.startswith(("slipstream_parity_", "slipstream_resumed"))}
    eventually(lambda: not late.isdisjoint(exposed(served.url)), "the metrics of comparisons")
    found = exposed(served.url)
    for name, labels in found.items():
        assert labels <= known.get(name, set()), name
    missing = {name for name in known.keys() - found.keys() - late if not name.startswith(RARE)}
    assert missing == set()
