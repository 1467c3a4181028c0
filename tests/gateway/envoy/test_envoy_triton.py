"""A pair on Triton behind Envoy: the filter hands its requests over to the gateway, which alone reaches its servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.gateway.envoy.conftest import MODES
from tests.gateway.gateway_thread import Gateway
from tests.support.envoy import Envoy
from tests.support.polling import eventually
from tests.support.ports import lasting_ports

SUMMARY = (
    "Summarise this call for the CRM.\n\nAgent: Good morning, how can I help you?\nCustomer: My name is Mara Osterova. "
    "I was charged twice for my coffee machine.\nAgent: I am reversing the second payment now: 89.90 EUR."
)


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_requests_for_triton_reach_it_through_the_gateway(
    tmp_path: Path,
    run_gateway: Callable[..., contextlib.AbstractContextManager[Gateway]],
    triton_endpoint: str,
    modes: dict[str, str],
) -> None:
    [filter_port] = lasting_ports(1)
    text = EMBEDDED_MANIFEST.read_text(encoding="utf-8")
    options = {"ext_proc": f"127.0.0.1:{filter_port}", "local_endpoints": (f"grpc://{triton_endpoint}",)}
    with run_gateway(tmp_path / "pair.yaml", text, **options) as gateway:
        envoy = Envoy(tmp_path, filter_port=filter_port, gateway_port=gateway.port, models=[1], modes=modes)
        try:
            client = openai.OpenAI(base_url=f"{envoy.url}/v1", api_key="unused", max_retries=0)
            headers = {"x-slipstream-mode": "speculative"}
            messages = [{"role": "user", "content": SUMMARY}]
            whole = client.chat.completions.with_raw_response.create(
                model="slipstream-embedded", messages=messages, temperature=0, extra_headers=headers
            )  # type: ignore[call-overload]
            assert whole.headers["x-slipstream-arm"] == "speculative"
            chunks = client.chat.completions.create(
                model="slipstream-embedded", messages=messages, temperature=0, extra_headers=headers, stream=True
            )  # type: ignore[call-overload]
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert streamed == whole.parse().choices[0].message.content
            eventually(
                lambda: gateway.metric("slipstream_requests_total", status="ok", arm="speculative") == 2,
                "both recorded",
            )
        finally:
            envoy.stop()
