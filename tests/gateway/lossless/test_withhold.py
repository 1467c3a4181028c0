"""What is withheld from a server, by what its checks found and by what became of it."""

from __future__ import annotations

import time

import pytest
from slipstream_core.manifest import WireProtocol
from slipstream_core.manifest.capabilities import Capabilities
from slipstream_core.manifest.table import Backend
from slipstream_core.types import Capability, Reason
from slipstream_gateway.lossless.findings import Finding, Result, Subject
from slipstream_gateway.lossless.withhold import Watch
from slipstream_gateway.upstreams.base import Drafting
from slipstream_gateway.upstreams.pool import Pool, Replica
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream

GREEDY, SAMPLED = Capability.GREEDY_SPECULATION, Capability.SAMPLED_SPECULATION


def _backend(*, own_engine: bool = False) -> Backend:
    protocol = WireProtocol.TRITON if own_engine else WireProtocol.OPENAI
    return Backend(
        protocol=protocol, endpoints=(), model="m", capabilities=Capabilities(), pool="p", own_engine=own_engine
    )


@pytest.fixture
def replica() -> Replica:
    return Replica("server", RefusedUpstream("of the test"))


def _found(subject: Subject, result: Result) -> Finding:
    return Finding(subject=subject, result=result, detail=f"{subject} {result}")


def _greedy_passed(replica: Replica) -> Watch:
    """The watch of a server whose greedy answers passed their check."""
    watch = Watch(("pair",), replica, _backend())
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.PASS)], draft_length=4)
    return watch


def _reasons(replica: Replica) -> dict[Capability, Reason]:
    return {capability: why.reason for capability, why in replica.withheld.items()}


def test_server_of_another_engine_does_not_speculate_until_it_is_checked(replica: Replica) -> None:
    Watch(("pair",), replica, _backend())
    pool = Pool([replica], clock=time.monotonic, speculative=True)
    for needs in (GREEDY, SAMPLED):
        assert pool.pick(needs=needs) is None
        assert pool.least_busy(needs) is None
        why = pool.withheld(needs)
        assert why is not None
        assert why.reason is Reason.ENGINE_UNVERIFIED


def test_greedy_speculation_waits_for_its_first_verdict_and_keeps_it(
    replica: Replica,
) -> None:
    watch = Watch(("pair",), replica, _backend())
    watch.apply(
        [_found(Subject.GREEDY_SPECULATION, Result.NO_DATA), _found(Subject.SAMPLED_SPECULATION, Result.NO_DATA)],
        draft_length=4,
    )
    assert _reasons(replica) == dict.fromkeys((GREEDY, SAMPLED), Reason.ENGINE_UNVERIFIED)
    assert watch.is_unverified
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.PASS)], draft_length=4)
    assert not watch.is_unverified
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert _reasons(replica) == {SAMPLED: Reason.ENGINE_UNVERIFIED}
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.FAIL)], draft_length=4)
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert _reasons(replica)[GREEDY] is Reason.ENGINE_NOT_LOSSLESS


def test_own_engine_is_trusted_until_a_check_says_otherwise(replica: Replica) -> None:
    watch = Watch(("pair",), replica, _backend(own_engine=True))
    assert _reasons(replica) == {}
    watch.apply(
        [_found(Subject.GREEDY_SPECULATION, Result.FAIL), _found(Subject.SAMPLED_SPECULATION, Result.NO_DATA)],
        draft_length=4,
    )
    assert _reasons(replica) == {GREEDY: Reason.ENGINE_NOT_LOSSLESS}


def test_capability_comes_with_a_pass_and_goes_with_a_failure(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    watch = _greedy_passed(replica)
    assert not watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.PASS)], draft_length=4)
    assert _reasons(replica) == {}
    assert replica.gives_token_ids
    for _ in range(3):
        took = watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.FAIL)], draft_length=4)
    assert not took  # that was the first time
    assert _reasons(replica) == {SAMPLED: Reason.ENGINE_NOT_LOSSLESS}
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "sampled_speculation is withdrawn: sampled_speculation fail" in caplog.text
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.PASS)], draft_length=4)
    assert _reasons(replica) == {}


def test_no_data_changes_nothing_and_hides_no_finding(replica: Replica) -> None:
    watch = _greedy_passed(replica)
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert _reasons(replica) == {SAMPLED: Reason.ENGINE_UNVERIFIED}
    assert not replica.gives_token_ids
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.PASS)], draft_length=4)
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert _reasons(replica) == {}
    assert watch.findings[Subject.SAMPLED_SPECULATION].result is Result.PASS


def test_draft_lengths_take_no_capability(replica: Replica) -> None:
    watch = Watch(("pair",), replica, _backend(own_engine=True))
    watch.apply([_found(Subject.DRAFT_LENGTH, Result.FAIL)], draft_length=4)
    assert _reasons(replica) == {}


def test_server_that_could_not_be_reached_is_unverified_at_once(replica: Replica) -> None:
    watch = Watch(("pair",), replica, _backend())
    watch.apply(
        [_found(Subject.SAMPLED_SPECULATION, Result.PASS), _found(Subject.GREEDY_SPECULATION, Result.FAIL)],
        draft_length=4,
    )
    replica.failed(time.monotonic(), "upstream_failed", speculative=True)
    assert not watch.is_another
    replica.failed(time.monotonic(), "upstream_unavailable", speculative=True)
    assert watch.is_another
    assert _reasons(replica) == dict.fromkeys((GREEDY, SAMPLED), Reason.ENGINE_UNVERIFIED)
    assert not replica.gives_token_ids


def test_distrust_outlasts_a_check_that_passes_and_ends_with_the_process(replica: Replica) -> None:
    watch = _greedy_passed(replica)
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.PASS)], draft_length=4)
    assert watch.distrust(SAMPLED, "drift")
    watch.apply([_found(Subject.SAMPLED_SPECULATION, Result.PASS)], draft_length=4)
    assert _reasons(replica) == {SAMPLED: Reason.ENGINE_NOT_LOSSLESS}
    replica.lost()
    watch.renew()
    watch.apply(
        [_found(Subject.GREEDY_SPECULATION, Result.PASS), _found(Subject.SAMPLED_SPECULATION, Result.PASS)],
        draft_length=4,
    )
    assert _reasons(replica) == {}


def test_draft_lengths_that_are_not_followed_are_logged_once_and_take_nothing_away(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    watch = _greedy_passed(replica)
    before = replica.withheld
    for _ in range(2):
        watch.apply([_found(Subject.DRAFT_LENGTH, Result.FAIL)], draft_length=4)
    assert [record.levelname for record in caplog.records if "draft lengths are not followed" in record.message] == [
        "WARNING"
    ]
    assert replica.withheld == before
    watch.apply([_found(Subject.DRAFT_LENGTH, Result.PASS)], draft_length=4)
    watch.apply([_found(Subject.DRAFT_LENGTH, Result.FAIL)], draft_length=4)
    assert sum("draft lengths are not followed" in record.message for record in caplog.records) == 2


def test_check_that_cannot_be_made_is_logged_once_until_one_can(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(("one", "two"), replica, _backend())
    for _ in range(2):
        watch.apply([_found(Subject.GREEDY_SPECULATION, Result.NO_DATA)], draft_length=4)
        replica.lost()
        watch.renew()
    assert caplog.messages == ["server of one, two: greedy_speculation cannot be checked: greedy_speculation no_data"]
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.PASS)], draft_length=4)
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert len([message for message in caplog.messages if "cannot be checked" in message]) == 2


def test_verdict_holds_for_drafts_up_to_the_longest_that_were_judged(replica: Replica) -> None:
    watch = Watch(("pair",), replica, _backend())
    assert not watch.exceeds(4)  # there is no verdict that could be exceeded
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.NO_DATA)], draft_length=4)
    assert not watch.exceeds(5)
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.PASS)], draft_length=4)
    watch.apply([_found(Subject.GREEDY_SPECULATION, Result.PASS)], draft_length=2)
    assert not watch.exceeds(4)
    assert watch.exceeds(5)
    watch.renew()
    assert not watch.exceeds(5)


class _Says(RefusedUpstream):
    """Says `drafting` of itself."""

    drafting = Drafting(longest=4, limit=None, identity="one")


def test_server_that_says_something_else_of_itself_is_another_one() -> None:
    upstream = _Says("of the test")
    watch = Watch(("pair",), Replica("server", upstream), _backend())
    upstream.drafting = upstream.drafting._replace(limit=0)
    assert not watch.is_another  # an admin's limit changes no answer
    upstream.drafting = upstream.drafting._replace(identity="two")
    assert watch.is_another
    watch.renew()
    assert not watch.is_another
