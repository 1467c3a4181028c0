"""A gateway with a file of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from slipstream_core.settings import AccessSettings

from tests.gateway.key_file import Keys
from tests.gateway.pair_manifest import manifest_text


@pytest.fixture
def served(gateway: Callable[..., Any], openai_server: Callable[..., Any], keys: Keys) -> Callable[..., Any]:
    """Starts a gateway for the model `acme` with the file of keys `keys`."""

    def start(**options: Any) -> Any:
        upstream = openai_server()
        running = gateway(manifest_text([upstream.url]), access=AccessSettings(keys=keys.path), **options)
        running.upstream = upstream
        return running

    return start
