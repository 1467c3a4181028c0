"""The rules for services' keys, compiled once: the capture writers of the tests find them in the user's cache."""

from __future__ import annotations

import pytest
from slipstream_gateway.capture.redaction.services import service_keys


@pytest.fixture(scope="session", autouse=True)
def compiled_rules() -> None:
    service_keys()
