"""One table of cases for failover, resumption, canary and kill, and what holds whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_core.errors import InvalidRequest, SlipstreamError, UpstreamFailed, UpstreamUnavailable
from slipstream_core.manifest.table import CanaryRoute
from slipstream_core.types import Arm
from slipstream_gateway.request.candidates import (
    MAX_ATTEMPTS,
    MAX_RESUMPTIONS,
    MAX_RUNS,
    Candidate,
    Plan,
    Result,
    Sent,
    Tried,
    next_candidate,
)

from tests.gateway.request.test_candidates import GREEDY, MANIFEST, decision, request

LOST, ILL, REFUSED = UpstreamUnavailable("lost"), UpstreamFailed("status 500"), InvalidRequest("no")
THREE = MANIFEST % '"grpc://127.0.0.1:1", "grpc://127.0.0.1:2", "grpc://127.0.0.1:3"'


@pytest.fixture
async def plan(bench: Callable[..., Any]) -> Plan:
    """A pair with three servers, and a new revision with the same ones beside it."""
    made = bench(THREE)
    canary = CanaryRoute(route=made.served.route, revision="0123456789abcdef", share=0.1)
    served = made.served._replace(route=msgspec.structs.replace(made.served.route, canary=canary), canary=made.served)
    return Plan(served, decision(), request(GREEDY))


BEGUN = "a server"
CASES: list[tuple[str, dict[str, Any], SlipstreamError | None, str]] = [
    ("the decided arm is first", {}, None, "speculative"),
    ("a kill ends the speculative arm", {"is_killed": True}, None, "plain"),
    ("another server after a failure", {"runs": 1}, LOST, "speculative"),
    ("two runs are enough", {"runs": MAX_RUNS}, LOST, Result.TOO_OFTEN),
    ("a proxy sends a request once", {"is_carried": True}, LOST, Result.TOO_OFTEN),
    ("no retry after the time is over", {"is_over": True}, LOST, Result.TOO_OFTEN),
    ("a stream resumes plainly", {"broken": BEGUN}, LOST, "plain"),
    ("a killed stream resumes plainly", {"broken": BEGUN, "is_killed": True}, LOST, "plain"),
    ("no journal, no resumption", {"broken": BEGUN, "is_resumable": False}, LOST, Result.NOT_RESUMABLE),
    ("a refusal ends a resumption", {"broken": BEGUN}, REFUSED, Result.NOT_RESUMABLE),
    ("streams resume three times", {"broken": BEGUN, "resumed": MAX_RESUMPTIONS}, LOST, Result.TOO_OFTEN),
    ("a stream that breaks servers ends", {"broken": BEGUN, "runs": MAX_RUNS}, LOST, Result.TOO_OFTEN),
]


@pytest.mark.parametrize(("sent", "failure", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_next_candidate(
    plan: Plan, sent: dict[str, Any], failure: SlipstreamError | None, expected: str | Result
) -> None:
    if "broken" in sent:
        first = next_candidate(plan, Sent())
        assert isinstance(first, Candidate)
        sent = {**sent, "broken": first}
    found = next_candidate(plan, Sent(**sent), failure)
    assert (found if isinstance(found, Result) else found.decision.arm) == expected


FAILURES = st.lists(st.sampled_from([LOST, ILL]), min_size=12, max_size=12)
ANY_ORDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def walk(plan: Plan, failures: list[Any], *, broken: Candidate | None = None, killed_from: int = 99) -> list[Tried]:
    """The attempts of a request that fails on each server."""
    tried: list[Tried] = []
    for failure in failures:
        found = next_candidate(plan, Sent(tried, broken, is_killed=len(tried) >= killed_from), failure)
        if isinstance(found, Result):
            assert found is Result.NO_SERVER
            return tried
        tried.append(Tried.of(found, failure))
    raise AssertionError("the search does not end")


@ANY_ORDER
@given(failures=FAILURES, killed_from=st.integers(0, 6), to_canary=st.booleans())
async def test_before_the_first_byte(plan: Plan, failures: list[Any], killed_from: int, to_canary: bool) -> None:
    tried = walk(msgspec.structs.replace(plan, to_canary=to_canary), failures, killed_from=killed_from)
    assert [bool(one.candidate.decision.revision) for one in tried] == [to_canary] + [False] * (len(tried) - 1)
    ours = tried[to_canary:]
    assert 0 < len(ours) <= MAX_ATTEMPTS
    arms = [one.candidate.decision.arm for one in tried]
    assert Arm.SPECULATIVE not in arms[killed_from:]
    assert arms[to_canary:] == sorted(arms[to_canary:], reverse=True)  # speculative ones first
    for at, one in enumerate(ours):
        before = [other for other in ours[:at] if other.candidate.replica is one.candidate.replica]
        assert len(before) < 2
        on_arm = [other for other in before if other.candidate.decision.arm is one.candidate.decision.arm]
        assert not any(other.failed_itself for other in on_arm)  # a server that is ill gets it once on an arm


@ANY_ORDER
@given(failures=FAILURES, killed_from=st.integers(0, 6))
async def test_a_round_of_a_resumption(plan: Plan, failures: list[Any], killed_from: int) -> None:
    broken = next_candidate(plan, Sent())
    assert isinstance(broken, Candidate)
    servers = [one.candidate.replica for one in walk(plan, failures, broken=broken, killed_from=killed_from)]
    assert len(set(servers)) == len(servers) == 3
    assert servers[-1] is broken.replica
