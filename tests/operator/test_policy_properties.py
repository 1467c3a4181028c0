"""What holds of every course of events: a model of the world takes random turns."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slipstream_core.manifest.status import ClassStatus, Phase
from slipstream_core.types import Arm
from slipstream_operator.rollout.analysis.ledger import standings_of

from tests.operator.policy_world import World, observation, raw_policy

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SHARES = {0.1, 0.5}

ACTIONS = st.one_of(
    st.tuples(st.just("serve"), st.sampled_from([5, 60, 120]), st.sampled_from([0.4, 0.66, 0.72])),
    st.tuples(st.just("slow"), st.just(60), st.just(1.0)),
    st.tuples(st.just("errors"), st.sampled_from([1, 30]), st.just(0)),
    st.tuples(st.just("plain"), st.just(3), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([1, 61, 601, 4000]), st.just(0)),
    st.tuples(st.just("back"), st.sampled_from([30, 5000]), st.just(0)),
    st.tuples(st.just("kill"), st.booleans(), st.just(0)),
    st.tuples(st.just("ready"), st.booleans(), st.just(0)),
)
STORE = st.tuples(st.just("store"), st.booleans(), st.just(0))
TURNS = st.lists(st.tuples(ACTIONS | STORE, st.booleans()), min_size=3, max_size=14)
# An operator that is restarted while the store is away does not know since when: it may count silence from its start.
WITH_STORE = st.lists(st.tuples(ACTIONS, st.booleans()), min_size=3, max_size=14)
EDITS = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(list(Phase)),
        "share": st.sampled_from([0.0, 0.5, 1.0]),
        "step": st.integers(0, 3),
        "since": st.sampled_from(["", "long ago", "2020-01-01T00:00:00Z"]),
        "retries": st.integers(0, 5),
        "retry_at": st.sampled_from([None, "soon", "2020-01-01T00:00:00Z"]),
    },
)


def act(world: World, action: tuple[str, float, float]) -> None:
    """One turn of the world, before the operator looks."""
    name, amount, value = action
    if name == "serve":
        world.serve(int(amount), acceptance=value)
    elif name == "slow":
        world.serve(int(amount), e2e_s=value)
    elif name in ("errors", "plain"):
        more = {"status": "upstream_failed"} if name == "errors" else {"arm": Arm.PLAIN}
        for _ in range(int(amount)):
            world.tell(observation(time_s=world.now.timestamp(), e2e_s=0.1, **more))
    elif name in ("wait", "back"):
        world.wait(amount if name == "wait" else -amount)
    elif name == "kill":
        world.pair_killed = bool(amount)
    elif name == "ready":
        world.pair_ready = bool(amount)
    else:
        world.connected = bool(amount)


def check(before: ClassStatus | None, after: ClassStatus, world: World) -> None:
    """What every transition keeps to."""
    assert after.share in {Phase.PROGRESSING: SHARES, Phase.PROMOTED: {0.5}}.get(after.phase, {0.0})
    if before is None:
        assert (after.phase, after.step) in ((Phase.PROGRESSING, 0), (Phase.ROLLED_BACK, 0))
        return
    rank = {Phase.PROGRESSING: before.step, Phase.PROMOTED: 2}
    up = (before.phase, before.step, before.share) != (after.phase, after.step, after.share) and (
        after.share > before.share or (before.phase is Phase.PROGRESSING and after.phase is Phase.PROMOTED)
    )
    if not up:
        return
    assert not world.pair_killed
    assert world.pair_ready
    if before.phase is Phase.ROLLED_BACK:
        assert before.retry_at is not None
        assert before.retry_at <= world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        assert (after.phase, after.step, after.retries) == (Phase.PROGRESSING, 0, before.retries + 1)
    elif before.phase is Phase.STALE:
        assert (after.phase, after.step) == (Phase.PROGRESSING, 0)
    else:
        assert world.connected
        wanted = (Phase.PROGRESSING, 1) if rank[before.phase] == 0 else (Phase.PROMOTED, 1)
        assert (after.phase, after.step) == wanted


@QUICK
@given(turns=TURNS)
def test_no_course_of_events_breaks_the_rules_of_the_rollout(
    turns: list[tuple[tuple[str, float, float], bool]],
) -> None:
    world = World()
    for action, stores in turns:
        before = {one.name: one for one in world.status.classes} if world.status else {}
        act(world, action)
        plan = world.look(stores=stores)
        for after in plan.status.classes:
            check(before.get(after.name), after, world)


@QUICK
@given(turns=WITH_STORE, edits=st.lists(EDITS, max_size=14))
def test_restarts_and_edits_at_any_point_change_nothing(
    turns: list[tuple[tuple[str, float, float], bool]], edits: list[dict[str, object]]
) -> None:
    calm, rough = World(), World()
    for index, (action, disturbed) in enumerate(turns):
        for world in (calm, rough):
            act(world, action)
        if disturbed and rough.status is not None:
            for fields in edits[index : index + 1]:
                rough.edit(**fields)
            rough.restart()
            calm.look_before_reading()  # as the restarted operator does; each decides on what it has
        for world in (calm, rough):
            world.look()
        assert standings_of(rough.status) == standings_of(calm.status)
        assert rough.ledger.facts(rough.now.timestamp()) == calm.ledger.facts(calm.now.timestamp())


@QUICK
@given(turns=TURNS)
def test_without_enough_answers_nothing_ever_goes_up(turns: list[tuple[tuple[str, float, float], bool]]) -> None:
    world = World(raw_policy(analysis={"minSamples": 100_000}))
    for action, stores in turns:
        act(world, action)
        for after in world.look(stores=stores).status.classes:
            assert after.share in (0.0, 0.1)
            assert after.step == 0
