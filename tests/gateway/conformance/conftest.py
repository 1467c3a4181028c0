"""Scripted engines, and manifests in front of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.conformance.scripted_engine import ScriptedEngine


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    started = ScriptedEngine()
    yield started
    started.stop()
