"""The plugin's schedulers, synchronous and asynchronous, driven by a scripted model runner."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from scripted import MOST, Engine, configuration, request, said_by_target, scheduler_for
from slipstream_vllm.counters import Counted
from vllm.v1.request import RequestStatus

TARGET = os.environ["SLIPSTREAM_TARGET"]


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def config(request: pytest.FixtureRequest) -> Any:
    return configuration(TARGET, asynchronous=request.param)


@pytest.fixture
def engine(config: Any) -> Engine:
    return Engine(scheduler_for(config))


def drafts_of(engine: Engine, name: str) -> list[int]:
    return [step.verified.get(f"{name}-0123abcd", 0) for step in engine.steps]


def counts_of(engine: Engine) -> list[Counted]:
    """The counts that each step sends to vLLM's API server."""
    return [stats.kv_connector_stats["slipstream"] for stats in engine.stats]


def test_each_request_of_a_batch_has_its_own_length(engine: Engine) -> None:
    lengths = {"a": 0, "b": 4, "c": 0, "d": 2, "e": 1, "f": 3, "g": None}
    engine.add(*(request(name, length) for name, length in lengths.items()))
    engine.run()
    for name, length in lengths.items():
        assert max(drafts_of(engine, name)) == (MOST if length is None else length)
        assert engine.received[f"{name}-0123abcd"] == [said_by_target(at) for at in range(40)]


def test_counts_by_class_equal_vllms_counters(engine: Engine) -> None:
    engine.add(request("a", 4, label="summary/long"), request("b", 2), request("c", 0, label="summary/long"))
    engine.run()
    rows = [row for counted in counts_of(engine) for row in counted.drafts]
    own = [stats.spec_decoding_stats for stats in engine.stats if stats.spec_decoding_stats is not None]
    assert {row[0] for row in rows} == {"summary/long", "unlabelled"}
    assert {row[1] for row in rows} == {4, 2}
    assert {row[2] for row in rows} == {"drafter"}
    assert sum(row[3] for row in rows) == sum(stats.num_drafts for stats in own)
    assert sum(row[4] for row in rows) == sum(stats.num_draft_tokens for stats in own) > 0
    assert sum(row[5] for row in rows) == sum(stats.num_accepted_tokens for stats in own) > 0


def test_tokens_of_every_step_are_sent_with_it(engine: Engine) -> None:
    engine.add(request("a", 4, label="summary/long"), request("b", 0))
    engine.run()
    by_class: dict[str, list[tuple[int, int, float]]] = {}
    for label, *counts in (row for counted in counts_of(engine) for row in counted.classes):
        by_class.setdefault(label, []).append((counts[0], counts[1], counts[2]))
    totals = {label: [sum(column) for column in zip(*rows, strict=True)] for label, rows in by_class.items()}
    described = engine.scheduler.slipstream_classes()
    assert totals.keys() == {"summary/long", "unlabelled"}
    for label, (tokens, steps, engine_s) in totals.items():
        assert (tokens, steps) == (described[label]["tokens"], described[label]["steps"])
        assert engine_s == pytest.approx(described[label]["engine_s"])
    assert totals["unlabelled"][:2] == [40, 40]
    assert totals["summary/long"][0] == 40 > totals["summary/long"][1] > 0


def test_the_drafter_proposes_no_more_than_the_longest_length(engine: Engine) -> None:
    engine.add(request("a", 0), request("b", 2))
    engine.run()
    assert {step.proposed for step in engine.steps if "b-0123abcd" in step.verified} == {2}
    assert {step.proposed for step in engine.steps if "b-0123abcd" not in step.verified} == {0}


def test_ranks_that_share_experts_propose_as_many_tokens_as_each_other(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config.parallel_config, "data_parallel_size", 2)
    engine = Engine(scheduler_for(config))
    engine.add(request("a", 0), request("b", 2))
    engine.run()
    assert {step.proposed for step in engine.steps} == {MOST}
    assert (max(drafts_of(engine, "a")), max(drafts_of(engine, "b"))) == (0, 2)


def test_nobody_drafts_means_an_idle_step(engine: Engine) -> None:
    engine.add(request("a", 0), request("b", 0))
    engine.step()
    assert engine.scheduler.slipstream_idle
    engine.run()
    assert {step.proposed for step in engine.steps} == {0}


def test_a_limit_holds_from_the_next_step_on(engine: Engine) -> None:
    engine.add(request("a", 4), request("b", 3))
    for _ in range(5):
        engine.step()
    before = len(engine.steps)
    engine.scheduler.slipstream_set_limit(1)
    for _ in range(4):
        engine.step()
    assert max(drafts_of(engine, "a")[before:]) == 1
    engine.scheduler.slipstream_set_limit(0)
    before = len(engine.steps)
    engine.step()
    assert drafts_of(engine, "a")[before:] == [0]
    engine.scheduler.slipstream_set_limit(None)
    before = len(engine.steps)
    engine.run()
    assert max(drafts_of(engine, "a")[before:]) == 4
    assert max(drafts_of(engine, "b")[before:]) == 3
    assert engine.received["a-0123abcd"] == [said_by_target(at) for at in range(40)]


def test_a_limit_within_a_step_waits_for_the_next(engine: Engine) -> None:
    engine.add(request("a", 4))
    for _ in range(4):
        engine.step()
    plain_update = engine.scheduler.kv_cache_manager.new_step_starts

    def change_limit() -> None:
        engine.scheduler.slipstream_set_limit(0)  # after `schedule` latched the caps
        plain_update()

    engine.scheduler.kv_cache_manager.new_step_starts = change_limit
    before = len(engine.steps)
    engine.step()
    assert drafts_of(engine, "a")[before:] == [4]
    assert engine.steps[-1].proposed == 4
    engine.step()
    assert drafts_of(engine, "a")[-1] == 0


def test_counts_carry_the_length_that_was_verified(engine: Engine) -> None:
    engine.add(request("a", 4))
    for _ in range(5):
        engine.step()
    engine.drain()
    engine.stats.clear()
    before = len(engine.steps)
    engine.schedule()
    assert drafts_of(engine, "a")[before:] == [4]
    engine.scheduler.slipstream_set_limit(1)
    if engine.is_async:
        engine.schedule()  # before the output of the step with four drafts is there
        assert drafts_of(engine, "a")[before:] == [4, 1]
    else:
        engine.scheduler.slipstream_set_length("a", 1)
    engine.drain()
    rows = [row for counted in counts_of(engine) for row in counted.drafts]
    assert [(row[1], row[4]) for row in rows] == ([(4, 4), (1, 1)] if engine.is_async else [(4, 4)])


def test_one_request_changes_and_its_neighbour_does_not(engine: Engine) -> None:
    engine.add(request("chatcmpl-a", 0), request("chatcmpl-a-1", 4))
    for _ in range(4):
        engine.step()
    assert engine.scheduler.slipstream_set_length("chatcmpl-a", 4) == 1
    before = len(engine.steps)
    for _ in range(4):
        engine.step()
    assert max(drafts_of(engine, "chatcmpl-a")[before:]) == 4
    assert engine.scheduler.slipstream_set_length("chatcmpl-a", 0) == 1
    before = len(engine.steps)
    engine.run()
    assert max(drafts_of(engine, "chatcmpl-a")[before + 1 :]) == 0
    assert max(drafts_of(engine, "chatcmpl-a-1")[before:]) == 4
    assert engine.scheduler.slipstream_set_length("chatcmpl-a", 0) == 0


def test_stop_drafting_spares_later_requests(engine: Engine) -> None:
    engine.add(request("a", 4), request("b", 2))
    for _ in range(4):
        engine.step()
    assert engine.scheduler.slipstream_stop_drafting() == 2
    before = len(engine.steps)
    engine.add(request("c", 3))
    engine.run()
    assert max(drafts_of(engine, "a")[before:]) == max(drafts_of(engine, "b")[before:]) == 0
    assert max(drafts_of(engine, "c")) == 3


def test_a_full_prefix_hit_is_not_padded_with_drafts(engine: Engine) -> None:
    engine.add(request("a", 0, prompt=33))
    engine.run()
    engine.add(request("other", 0, prompt=20))
    engine.step()
    engine.add(request("b", 0, prompt=33))
    engine.run()
    assert max(drafts_of(engine, "b")) == 0


def test_aborts_and_preemptions_free_every_block(config: Any) -> None:
    engine = Engine(scheduler_for(config, blocks=14))  # too few for all: some are preempted
    manager = engine.scheduler.kv_cache_manager
    free = manager.block_pool.get_num_free_blocks()
    engine.add(*(request(f"r{n}", n % 5, prompt=20, output=60) for n in range(6)))
    for _ in range(12):
        engine.step()
    assert any(one.num_preemptions for one in engine.scheduler.requests.values()), "nothing was preempted"
    engine.scheduler.finish_requests(["r1-0123abcd", "r4-0123abcd"], RequestStatus.FINISHED_ABORTED)
    engine.run()
    for n in (0, 2, 3, 5):
        assert engine.received[f"r{n}-0123abcd"] == [said_by_target(at) for at in range(60)]
    assert manager.block_pool.get_num_free_blocks() == free
    assert manager.usage == 0


def test_a_bad_length_is_refused_by_the_scheduler_too(engine: Engine) -> None:
    for length in (-1, 5, True, 2.0, "4"):
        with pytest.raises(ValueError, match=r"slipstream_draft_length is"):
            engine.add(request("a", length))  # type: ignore[arg-type]  # on purpose


def with_costs(engine: Engine, step_s: Callable[[int], float]) -> Engine:
    """The engine with known and constant costs of steps."""
    known = engine.scheduler._draft_rows
    for rows in range(1, 65):
        known.note_step(1, rows, step_s(rows), 0)
    known.note_step = lambda requests, rows, seconds, most: None
    return engine


def test_adaptive_requests_draft_nothing_while_rows_are_dear(engine: Engine) -> None:
    with_costs(engine, lambda rows: float(rows * rows))
    engine.add(*(request(name, 4, adaptive=True) for name in "abc"))
    engine.run()
    assert all(not any(drafts_of(engine, name)) for name in "abc")
    assert {step.proposed for step in engine.steps} == {0}
    assert engine.scheduler.slipstream_idle
    assert engine.received["a-0123abcd"] == [said_by_target(at) for at in range(40)]


def test_adaptive_requests_draft_while_rows_are_free(engine: Engine) -> None:
    with_costs(engine, lambda rows: 1.0)
    engine.add(*(request(name, 3, adaptive=True) for name in "abc"))
    engine.run()
    assert all(max(drafts_of(engine, name)) == 3 for name in "abc")
    assert engine.received["a-0123abcd"] == [said_by_target(at) for at in range(40)]


def test_adaptive_requests_draft_only_free_rows_beside_a_protected_one(engine: Engine) -> None:
    """The drafts pay, but from the fifth row on a step is longer."""
    with_costs(engine, lambda rows: 1.0 if rows <= 4 else 1.0 + 0.05 * (rows - 4))
    engine.add(request("a", 4, output=100, adaptive=True), request("b", 0, output=20, protected=True))
    engine.run()
    drafts = drafts_of(engine, "a")
    assert 0 < max(drafts[:15]) <= 2
    assert max(drafts) == 4


def test_lengths_of_adaptive_requests_are_caps_where_vllm_allocates(engine: Engine) -> None:
    with_costs(engine, lambda rows: float(rows * rows))
    engine.scheduler._allocates = False  # `enable_adaptive_verification`, which needs CUDA graphs
    engine.add(*(request(name, 3, adaptive=True) for name in "abc"))
    engine.run()
    assert all(max(drafts_of(engine, name)) == 3 for name in "abc")


def test_a_fixed_length_stays_beside_adaptive_requests(engine: Engine) -> None:
    with_costs(engine, lambda rows: float(rows * rows))
    engine.add(request("a", 4), request("b", 4, adaptive=True))
    engine.run()
    assert max(drafts_of(engine, "a")) == 4
    assert not any(drafts_of(engine, "b"))


def test_adaptive_requests_share_few_rows_by_their_chances(engine: Engine) -> None:
    """The drafter is wrong at every third position, so the third draft token of a step is seldom accepted."""
    with_costs(engine, lambda rows: 4.0 if rows <= 6 else 4.0 + 4.0 * (rows - 6))
    engine.add(*(request(name, 4, output=300, adaptive=True) for name in "ab"))
    engine.run()
    later = engine.steps[len(engine.steps) // 2 :]
    assert max(sum(step.verified.values()) for step in later) <= 4
    assert sum(sum(step.verified.values()) for step in later) > 0


def test_the_tokens_of_prompts_count_as_rows(engine: Engine) -> None:
    """Hundreds of requests have hardly any step without a prompt."""
    engine.add(request("a", 2, adaptive=True), request("b", 0))
    engine.run()
    measured = [rows for rows, _ in engine.scheduler._draft_rows._costs._known(2)]
    assert min(measured) <= 5  # two requests and their draft tokens
    assert max(measured) >= 20  # a prompt
