"""A real receiver of OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.http_server import Asked, Reply, answering


class OtlpReceiver(NamedTuple):
    """Its address, and what it got: path and body."""

    url: str
    got: list[tuple[str, bytes]]


@pytest.fixture
def otlp_receiver() -> Iterator[OtlpReceiver]:
    got: list[tuple[str, bytes]] = []

    def keep(asked: Asked) -> Reply:
        got.append((asked.path, asked.body))
        return Reply()

    with answering(keep) as url:
        yield OtlpReceiver(url, got)
