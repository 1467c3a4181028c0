"""Internal ids of vLLM, as its serving classes make them, and the ids that clients see."""

from __future__ import annotations

import pytest
from slipstream_vllm.request_id import client_id


@pytest.mark.parametrize(
    ("internal", "seen"),
    [
        ("chatcmpl-abc-1f2e3d4c", "chatcmpl-abc"),
        ("chatcmpl-abc-1-1f2e3d4c", "chatcmpl-abc-1"),
        ("1_chatcmpl-abc-1f2e3d4c", "chatcmpl-abc"),
        ("cmpl-abc-0-1f2e3d4c", "cmpl-abc"),
        ("cmpl-abc-0-0-1f2e3d4c", "cmpl-abc-0"),
        ("0_cmpl-abc-2-1f2e3d4c", "cmpl-abc"),
        ("resp_abc_0-1f2e3d4c", "resp_abc"),
        ("my-own-1f2e3d4c", "my-own"),
    ],
)
def test_client_id(internal: str, seen: str) -> None:
    assert client_id(internal) == seen
