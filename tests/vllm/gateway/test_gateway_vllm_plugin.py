"""Servers with the plugin, without it, and one after the other at one address."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from slipstream_tools.up.vllm_server import VllmServer

from tests.gateway.gateway_thread import Gateway
from tests.support.network import Network
from tests.vllm.gateway.conftest import manifest
from tests.vllm.gateway.vllm_answers import ask, until_reason


def port_of(server: VllmServer) -> int:
    return int(server.url.rpartition(":")[2])


def test_a_server_without_the_plugin_decodes_plainly_until_one_with_it_takes_its_place(
    start_gateway: Callable[..., Gateway],
    garbage_server: VllmServer,
    vllm_server: VllmServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        Network(port_of(garbage_server)) as address,
        caplog.at_level(logging.INFO, "slipstream_gateway.upstreams.engine_watch"),
    ):
        served = start_gateway(manifest([address.url]))
        decision = until_reason(served, "engine_cannot")
        assert decision["arm"] == "plain"
        assert "start vLLM with --scheduler-cls slipstream_vllm.Scheduler" in decision["detail"]
        answer = ask(served, "speculative")
        assert answer.status_code == 200
        assert (answer.headers["x-slipstream-arm"], answer.headers["x-slipstream-reason"]) == ("plain", "engine_cannot")
        assert served.metric("slipstream_requests_total", arm="plain", reason="engine_cannot") == 1
        assert served.metric("slipstream_replica_longest_draft", pair="pair", arm="speculative") == 0
        address.lead_to(port_of(vllm_server))
        until_reason(served, "client_asked")
        answer = ask(served, "speculative")
        assert answer.headers["x-slipstream-arm"] == "speculative"
        assert served.metric("slipstream_replica_longest_draft", pair="pair", arm="speculative") == 4
    said = [record.getMessage() for record in caplog.records if record.name.endswith("engine_watch")]
    assert len(said) == 2  # once for each of the servers, however often they were asked
    assert "it does not have Slipstream's plugin" in said[0]
    assert "drafts of up to 4 tokens (draft_model, acceptance by equality" in said[1]


def test_drafts_are_no_longer_than_the_servers_take(
    start_gateway: Callable[..., Gateway], vllm_server: VllmServer
) -> None:
    served = start_gateway(manifest([vllm_server.url], draft_tokens=7))
    decision = until_reason(served, "client_asked")
    assert (decision["draft_length"], decision["numbers"]["servers_longest_draft"]) == (4, 4)
    answer = ask(served, "speculative", length=6)
    assert answer.headers["x-slipstream-draft-length"] == "4"
    assert sum(answer.json()["usage"]["completion_tokens_details"].values()) > 0
    assert ask(served, "speculative", length=3).headers["x-slipstream-draft-length"] == "3"


def test_a_key_that_the_server_refuses_is_said(
    start_gateway: Callable[..., Gateway], start_vllm: Callable[..., VllmServer]
) -> None:
    locked = start_vllm(env={"SLIPSTREAM_VLLM_TOKEN": "secret-of-the-plugin"})
    served = start_gateway(manifest([locked.url]))
    decision = until_reason(served, "engine_cannot")
    assert "refuses the gateway's key: set the right one in spec.engine.apiKeyEnv" in decision["detail"]
    assert ask(served, "speculative").status_code == 200
    locked.stop()
