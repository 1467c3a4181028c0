"""Servers in other configurations: with tokens, without speculation, and such that do not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import aiohttp
import pytest
from slipstream_core.errors import CommandError
from slipstream_tools.up.vllm_server import VllmServer

from tests.vllm.plugin.client import Refused, Server, summaries

pytestmark = pytest.mark.timeout(900)
TOKEN = "control-token"
KEY = "api-key"


@pytest.fixture(scope="module")
def guarded_server(start_vllm: Callable[..., VllmServer]) -> Iterator[VllmServer]:
    """No speculation, the plugin's scheduler, a control token and an API key."""
    server = start_vllm(speculative=False, plugin=True, extra=("--api-key", KEY), env={"SLIPSTREAM_VLLM_TOKEN": TOKEN})
    yield server
    server.stop()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("token", [TOKEN, KEY])
async def test_either_token_reads(session: aiohttp.ClientSession, guarded_server: VllmServer, token: str) -> None:
    server = Server(session, guarded_server.url, bearer(token))
    description = await server.call("GET", "/slipstream")
    assert description["max_draft_length"] == 0
    assert description["method"] is None
    assert description["scheduler"] == "sync"


async def test_only_the_plugins_own_token_changes(session: aiohttp.ClientSession, guarded_server: VllmServer) -> None:
    with pytest.raises(Refused) as refused:
        await Server(session, guarded_server.url, bearer(KEY)).call("PUT", "/slipstream/limit", {"limit": 0})
    assert refused.value.status == 403
    server = Server(session, guarded_server.url, bearer(TOKEN))
    assert await server.call("PUT", "/slipstream/limit", {"limit": 0}) == {"limit": 0}
    assert await server.call("POST", "/slipstream/stop_drafting") == {"stopped": 0}


@pytest.mark.parametrize("headers", [{}, bearer("wrong"), {"Authorization": f"Basic {TOKEN}"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/limit"), ("PUT", "/limit"), ("PUT", "/requests/chatcmpl-a"), ("POST", "/stop_drafting")],
)
async def test_a_wrong_or_missing_token_gets_401(
    session: aiohttp.ClientSession, guarded_server: VllmServer, headers: dict[str, str], method: str, path: str
) -> None:
    with pytest.raises(Refused) as refused:
        await Server(session, guarded_server.url, headers).call(method, f"/slipstream{path}", {"limit": 0})
    assert refused.value.status == 401
    assert set(refused.value.body["error"]) == {"message", "type", "param", "code"}


async def test_without_speculation_only_length_0_is_possible(
    session: aiohttp.ClientSession, guarded_server: VllmServer
) -> None:
    server = Server(session, guarded_server.url, bearer(KEY))
    [body] = summaries(1)
    short = {**body, "max_tokens": 4}
    assert len((await server.chat(short, 0)).token_ids) == len((await server.chat(short)).token_ids) == 4
    with pytest.raises(Refused, match="does not speculate") as refused:
        await server.chat(short, 1)
    assert refused.value.status == 400


@pytest.mark.parametrize("limit", [-1, 5, True, "0", 1.5])
async def test_a_bad_limit_is_refused(speculative: Server, limit: object) -> None:
    with pytest.raises(Refused, match="limit is") as refused:
        await speculative.call("PUT", "/slipstream/limit", {"limit": limit})
    assert refused.value.status == 400


async def test_a_server_without_the_scheduler_has_no_control(plain: Server) -> None:
    with pytest.raises(Refused) as refused:
        await plain.call("GET", "/slipstream")
    assert refused.value.status == 404


def test_a_bad_acceptance_rule_refuses_to_start(start_vllm: Callable[..., VllmServer]) -> None:
    with pytest.raises(CommandError, match="SLIPSTREAM_VLLM_ACCEPTANCE must be 'equality' or 'rejection', not 'maybe'"):
        start_vllm(env={"SLIPSTREAM_VLLM_ACCEPTANCE": "maybe"})


def test_an_unloaded_plugin_refuses_to_start(start_vllm: Callable[..., VllmServer]) -> None:
    with pytest.raises(CommandError, match="add 'slipstream' to VLLM_PLUGINS"):
        start_vllm(env={"VLLM_PLUGINS": "another"})
