"""Requests that go to a new revision of a pair: its answers, its failures, and who answers then. The API server, the
gateway and Redis are real, the two servers are scripted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cluster.compared import Compared, compare
from tests.support.polling import eventually
from tests.support.redis_server import RedisServer


@pytest.fixture
def compared(space: Any, openai_server: Any, serve: Any, tmp_path: Path, free_ports: Callable[[int], list[int]]) -> Any:
    redis = RedisServer(tmp_path, free_ports(1)[0])
    yield compare(space, serve, redis, serving=openai_server(), new=openai_server(), share=1.0)
    redis.stop()


@pytest.mark.parametrize("stream", [False, True])
async def test_its_answers_are_marked_and_counted_for_it(compared: Compared, stream: bool) -> None:
    reply = compared.ask("tokens=3", stream=stream)
    assert reply.status_code == 200
    assert reply.headers["x-slipstream-revision"] == compared.revision
    seen = await compared.outcomes(2)
    assert {(one.revision, one.canary, one.status) for one in seen} == {(compared.revision, True, "ok")}
    assert {one.content["refused"] for one in seen} == {(0,)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_what_it_refuses_or_fails_is_answered_by_the_serving_revision(
    compared: Compared, status: int, stream: bool
) -> None:
    compared.new.status = status
    reply = compared.ask("tokens=3", stream=stream)
    assert reply.status_code == 200, reply.text
    assert "x-slipstream-revision" not in reply.headers
    assert compared.serving.requests
    failed = [one for one in await compared.outcomes(2) if one.status != "ok"]
    assert [(one.revision, one.canary) for one in failed] == [(compared.revision, True)]


def test_what_both_refuse_is_the_clients_error(compared: Compared) -> None:
    compared.new.status = compared.serving.status = 400
    assert compared.ask("tokens=3").status_code == 400


async def test_after_the_comparison_it_gets_no_requests_and_nothing_is_measured(compared: Compared, space: Any) -> None:
    space.client.patch_status(space.path("ModelPair", "acme"), {"canary": {"phase": "RolledBack"}})
    eventually(lambda: "x-slipstream-revision" not in compared.ask("tokens=2").headers, "the comparison is over")
    count = len(compared.new.requests)
    compared.ask("tokens=2")
    assert len(compared.new.requests) == count
    after = [one for one in await compared.outcomes(count + 2) if not one.revision]
    assert {one.content for one in after} == {None}
