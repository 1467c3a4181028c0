"""API keys from environment variables: white space around them does not count, and what no header can hold is named."""

from __future__ import annotations

import pytest
from slipstream_core.environment import secret
from slipstream_core.errors import CommandError, UpstreamUnavailable
from slipstream_core.manifest import WireProtocol
from slipstream_core.settings import GatewaySettings
from slipstream_gateway.app.implementations import connect
from slipstream_gateway.fleet.snapshot import ReplicaKey


@pytest.mark.parametrize("text", ["sk-abc", "sk-abc\n", "sk-abc\r\n", "\nsk-abc", " sk-abc\t"])
def test_white_space_around_a_key_does_not_count(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", text)
    assert secret("A_KEY") == "sk-abc"


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_key_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", text)
    assert secret("A_KEY") is None


@pytest.mark.parametrize("text", ["sk-one\nsk-two", "sk-\x01", "sk-ü"])
async def test_another_pairs_requests_are_served_beside_a_bad_key(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of a cluster may come with it at any time: its servers count as down."""
    monkeypatch.setenv("A_KEY", text)
    with pytest.raises(CommandError, match="the environment variable A_KEY is no API key: it contains"):
        secret("A_KEY")
    upstream = connect(ReplicaKey(WireProtocol.OPENAI, "http://127.0.0.1:1", "m", "A_KEY"), GatewaySettings())
    with pytest.raises(UpstreamUnavailable) as caught:
        await upstream.probe()
    assert "A_KEY" in f"{caught.value} {caught.value.detail}"
    await upstream.aclose()
