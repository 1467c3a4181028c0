"""Decisions and learning of the callback, without LiteLLM."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from slipstream_core.errors import ManifestError
from slipstream_gateway.litellm_proxy.proxy_requests import ProxyRequests
from slipstream_gateway.request.observations import Times
from slipstream_gateway.upstreams.base import Usage

from tests.gateway.litellm_proxy.conftest import MANIFEST
from tests.gateway.litellm_proxy.scripted_vllm import ScriptedVllm
from tests.gateway.litellm_proxy.test_litellm_decisions import CODE, body
from tests.support.polling import soon

ANSWERS = 40
OUTPUT = 121


class Owner:
    """LiteLLM's object of a request."""


@pytest.fixture
async def requests(start_vllm: Callable[..., ScriptedVllm], tmp_path: Path) -> AsyncIterator[ProxyRequests]:
    """Requests in front of a server that is known to have the plugin."""
    server = start_vllm()
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(MANIFEST.format(url=server.url) + "  decision: expected\n", encoding="utf-8")
    found = ProxyRequests(manifest)
    await found.started()
    await soon(lambda: begin(found, Owner()) > 0, "drafts")
    yield found
    await found.aclose()


def begin(requests: ProxyRequests, owner: Owner, request_id: str = "1") -> int:
    """Begins a request, and returns its draft length."""
    fields = requests.begin(body(CODE, stream=True), {}, owner=owner, request_id=request_id, key_id="key")
    return int(fields["slipstream_draft_length"])


def finish(requests: ProxyRequests, length: int, *, accepts: bool) -> None:
    """An answer whose step takes 10 ms, and 1 ms more for each draft token."""
    steps = -(-(OUTPUT - 1) // (length + 1 if accepts else 1))
    usage = Usage(prompt_tokens=20, output_tokens=OUTPUT)
    if length:
        usage.steps, usage.drafted, usage.accepted = steps, length * steps, OUTPUT - 1 - steps
    seconds = steps * (0.010 + 0.001 * length)
    requests.finish("1", usage, Times(seconds + 0.05, 0.05, seconds / (OUTPUT - 1)), cut=False)


@pytest.mark.parametrize("accepts", [True, False])
async def test_it_learns_whether_drafts_are_accepted(requests: ProxyRequests, accepts: bool) -> None:
    for _ in range(ANSWERS):
        owner = Owner()
        finish(requests, begin(requests, owner), accepts=accepts)
    length = begin(requests, Owner())
    assert length > 0 if accepts else length == 0


@pytest.mark.parametrize("others", [True, False])
async def test_requests_are_protected_where_every_server_can(
    start_vllm: Callable[..., ScriptedVllm], tmp_path: Path, others: bool
) -> None:
    servers = [start_vllm(protects=True), start_vllm(protects=others)]
    manifest = tmp_path / "pair.yaml"
    urls = '", "'.join(server.url for server in servers)
    manifest.write_text(MANIFEST.format(url=urls) + "  decision: expected\n", encoding="utf-8")
    found = ProxyRequests(manifest)
    await found.started()
    try:
        await soon(lambda: begin(found, Owner()) > 0 and all(server.queries for server in servers), "both servers")

        def is_protected() -> bool:
            fields = found.begin(body(CODE), {}, owner=Owner(), request_id="2", key_id="key")
            return fields.get("slipstream_protect") == 1

        await soon(lambda: is_protected() == others, "what both servers support")
    finally:
        await found.aclose()


async def test_a_request_that_litellm_forgets_ends(requests: ProxyRequests) -> None:
    """For example that of a client that left."""
    owner = Owner()
    length = begin(requests, owner)
    assert requests.draft_length("1") == length > 0
    del owner
    gc.collect()
    await soon(lambda: requests.draft_length("1") == 0, "its end")


async def test_only_pairs_of_vllm_with_the_plugin_are_served(requests: ProxyRequests) -> None:
    assert requests.serves("acme")
    assert not requests.serves("other")
    assert not requests.serves(None)


def test_an_invalid_manifest_is_refused_at_once(tmp_path: Path) -> None:
    manifest = tmp_path / "pair.yaml"
    manifest.write_text(MANIFEST.format(url="ftp://nowhere"), encoding="utf-8")
    with pytest.raises(ManifestError, match="endpoints"):
        ProxyRequests(manifest)
