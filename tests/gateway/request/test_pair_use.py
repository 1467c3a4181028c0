"""A pair is in use while a request runs, and for a minute after the last one."""

from __future__ import annotations

from slipstream_gateway.fleet.fleet import LATELY_S, PairUse


def test_pair_is_used_lately_while_requests_run_and_for_a_while_after() -> None:
    now_s = 0.0
    use = PairUse(lambda: now_s)
    use.begin("a")
    use.begin("a")
    use.begin("b")
    use.end("b")
    now_s = LATELY_S
    assert use.lately() == {"a", "b"}
    now_s = LATELY_S + 1
    assert use.lately() == {"a"}
    use.end("a")
    assert use.running("a") == 1
    now_s = 10 * LATELY_S
    assert use.lately() == {"a"}
    use.end("a")
    assert use.running("a") == 0
    assert use.lately() == {"a"}
    now_s = 12 * LATELY_S
    assert use.lately() == frozenset()
