"""The corpus is a pure function of its seed, and its own answers are right."""

from __future__ import annotations

import itertools

import pytest
from slipstream_engine.embedded.corpus import TASKS, Task, example, examples
from slipstream_engine.embedded.corpus.entities import is_held_out_name
from slipstream_engine.embedded.corpus.reasons import LABELS, REASONS
from slipstream_engine.embedded.workload import workload

from tests.support.answer_checks import check


def test_an_example_follows_from_seed_index_and_split() -> None:
    assert example(5, 7) == example(5, 7)
    assert example(5, 7) != example(6, 7)
    assert example(5, 7) != example(5, 7, "held_out")


def test_a_stream_can_be_entered_anywhere() -> None:
    whole = list(itertools.islice(examples(3), 12))
    assert list(itertools.islice(examples(3, start=8), 4)) == whole[8:]


def test_held_out_examples_share_no_prompt_and_no_name_with_training() -> None:
    train = list(itertools.islice(examples(1), 2000))
    held_out = list(itertools.islice(examples(1, "held_out"), 2000))
    prompts = {str(one.messages) for one in train if one.task not in ("python", "sql", "label")}
    assert not [one for one in held_out if str(one.messages) in prompts]
    for one, is_held_out in itertools.chain(((e, False) for e in train), ((e, True) for e in held_out)):
        if "customer" in one.facts:
            assert is_held_out_name(one.facts["customer"].split()[1]) is is_held_out


@pytest.mark.parametrize("task", TASKS)
def test_every_answer_passes_its_own_checks(task: Task) -> None:
    for one in itertools.islice(examples(11, mix={task: 1.0}), 200):
        assert set(check(one, one.answer).values()) == {1.0}, one


@pytest.mark.parametrize("task", TASKS)
def test_no_template_is_left_unfilled(task: Task) -> None:
    for one in itertools.islice(examples(12, mix={task: 1.0}), 200):
        text = "\n".join((*(message.content for message in one.messages), one.answer))
        for slot in (
            "{product}",
            "{order}",
            "{amount}",
            "{days}",
            "{weekday}",
            "{city}",
            "{name}",
            "{account}",
            "{what}",
        ):
            assert slot not in text
        assert "|]" not in text


@pytest.mark.parametrize("task", TASKS)
def test_an_answer_to_another_prompt_fails(task: Task) -> None:
    one, other = itertools.islice(examples(13, "held_out", mix={task: 1.0}), 2)
    assert one.answer == other.answer or min(check(one, other.answer).values()) < 1.0
    assert min(check(one, "I do not know.").values()) < 1.0
    assert min(check(one, "").values()) < 1.0


def test_there_are_enough_reasons_and_their_labels_differ() -> None:
    assert len(REASONS) >= 24
    assert len({reason.label for reason in REASONS}) == len(REASONS)
    assert all(" " not in label for label in LABELS)


def test_workload_is_repeatable_and_follows_the_mix() -> None:
    first = list(workload(2, 30, {"status": 0.5, "label": 0.5}))
    assert first == list(workload(2, 30, {"status": 0.5, "label": 0.5}))
    assert {request.task for request in first} == {"status", "label"}
    assert all(request.max_tokens > 0 and request.messages[-1]["role"] == "user" for request in first)
