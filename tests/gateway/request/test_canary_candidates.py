"""Where requests go that the draw sends to a new revision: live replicas, nothing on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import compile_table, parse
from slipstream_core.manifest.table import CanaryRoute, table_of
from slipstream_core.types import Arm
from slipstream_gateway.request.candidates import Candidate

from tests.gateway.request.test_candidates import (
    GREEDY,
    MANIFEST,
    decision,
    first_candidates,
    request,
    steps,
)
from tests.support.polling import soon

NEW = ("grpc://127.0.0.1:8", "grpc://127.0.0.1:9")


def canary_candidates(pair: Any, *args: Any) -> Iterator[Candidate]:
    """The servers of the new revision that are tried."""
    tried = first_candidates(pair, *args, to_canary=True)
    return (one for one in tried if one.decision.revision)


@pytest.fixture
def served(bench: Callable[..., Any]) -> Callable[..., Any]:
    """A pair with one server, and a new revision with two."""

    def make(new: str = "maxDraftTokens: 2") -> Any:
        made = bench(MANIFEST % '"grpc://127.0.0.1:1"')
        text = MANIFEST % ", ".join(f'"{address}"' for address in NEW) + f"  {new}\n"
        [canary] = compile_table(parse(text)).routes.values()
        route = msgspec.structs.replace(
            made.served.route, canary=CanaryRoute(route=canary, revision="0123456789abcdef", share=0.1)
        )
        made.fleet.swap(table_of([route]))
        return made

    return make


async def test_one_of_its_servers_is_tried_after_the_other_and_none_of_the_serving_revision(
    served: Callable[..., Any],
) -> None:
    pair = served().served
    tried = [list(canary_candidates(pair, decision(), request(GREEDY), lambda: False)) for _ in range(2)]
    assert sorted(one.replica.name for [one] in tried) == sorted(NEW)
    assert {one.decision.revision for [one] in tried} == {"0123456789abcdef"}
    assert {one.decision.arm for [one] in tried} == {Arm.SPECULATIVE}


async def test_its_draft_may_be_shorter_and_a_killed_pair_has_none(served: Callable[..., Any]) -> None:
    pair = served().served
    assert {step[1] for step in steps(canary_candidates(pair, decision(), request(GREEDY), lambda: False))} == {2}
    killed = list(canary_candidates(pair, decision(), request(GREEDY), lambda: True))
    assert {one.decision.arm for one in killed} == {Arm.PLAIN}


async def test_servers_that_are_known_to_be_down_are_left_alone(served: Callable[..., Any]) -> None:
    pair = served().served
    for replica in pair.canary.plain.replicas:
        for _ in range(20):
            replica.failed(time.monotonic(), "upstream_unavailable", speculative=False)
            replica.failed(time.monotonic(), "upstream_unavailable", speculative=True)
    assert list(canary_candidates(pair, decision(), request(GREEDY), lambda: False)) == []


async def test_a_server_that_may_be_back_gets_a_request(served: Callable[..., Any]) -> None:
    pair = served().served
    for replica in pair.canary.plain.replicas:
        for speculative in (False, True, False, True):
            replica.failed(time.monotonic(), "upstream_unavailable", speculative=speculative)

    def tried() -> list[Any]:
        return list(canary_candidates(pair, decision(), request(GREEDY), lambda: False))

    assert not tried()
    await soon(lambda: bool(tried()))


async def test_a_new_revision_without_a_draft_decodes_plainly(served: Callable[..., Any]) -> None:
    pair = served("").served
    canary = msgspec.structs.replace(pair.route.canary.route, speculative=None)
    pair = pair._replace(canary=pair.canary._replace(route=canary, speculative=None))
    tried = list(canary_candidates(pair, decision(), request(GREEDY), lambda: False))
    assert {(one.decision.arm, one.decision.draft_length) for one in tried} == {(Arm.PLAIN, 0)}
    assert len(tried) == 1


async def test_its_servers_are_closed_after_the_comparison_and_not_before(served: Callable[..., Any]) -> None:
    made = served()
    before = made.fleet.enter()
    made.fleet.swap(table_of([msgspec.structs.replace(made.served.route, canary=None)]))
    replicas = [served.canary for served in before.routes.values()]
    assert {key.endpoint for key in before.keys} == {*NEW, "grpc://127.0.0.1:1"}
    assert replicas[0] is not None
    made.fleet.leave(before)
    assert {key.endpoint for key in made.fleet.current.keys} == {"grpc://127.0.0.1:1"}
