"""Parts of the training: the fit to tasks, the shares by task, the figures of lengths."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from slipstream_core.types import Endpoint, GenerationRequest, Message, TaskType
from slipstream_gateway.decide.classify.model import HEADS, TASKS
from slipstream_tools.train.design import design
from slipstream_tools.train.figures import lengths
from slipstream_tools.train.fit import fit_tasks
from slipstream_tools.train.heads import fit_heads
from slipstream_tools.train.rows import Row


def row(text: str, **fields: object) -> Row:
    request = GenerationRequest(endpoint=Endpoint.CHAT, model="", messages=(Message(role="user", content=text),))
    return Row(request=request, **{"source": "desk", **fields})  # type: ignore[arg-type]


def test_rare_words_outweigh_words_of_every_text() -> None:
    """Two tasks, each with a word of its own, and a common word that one of them has slightly more often."""
    count = 40
    labels = np.array([index % 2 for index in range(count)], np.int64)
    words = np.zeros((count, 3), np.float32)
    words[np.arange(count), labels] = 1.0
    words[:, 2] = 1.0
    words[1, 2] = 0.0
    fitted = fit_tasks(sparse.csr_matrix(words), labels, np.full(count, 1 / count))
    margins = words @ fitted.weights + fitted.bias
    assert (margins[:, :2].argmax(axis=1) == labels).all()
    assert abs(fitted.weights[0, 0] - fitted.weights[0, 1]) > 10 * abs(fitted.weights[2, 0] - fitted.weights[2, 1])


def by_task(rows: list[Row]) -> np.ndarray:
    heads = fit_heads(rows, design(rows), np.arange(len(rows)))
    return heads.by_task[:, HEADS.index("speculate")]


def test_a_public_source_hardly_moves_the_stated_share_and_own_traffic_does() -> None:
    code = TASKS.index(TaskType.CODE)
    texts = [f"Write a function {index}" for index in range(1200)]
    labels = [{"task": TaskType.CODE, "speculate": index % 20 == 0} for index in range(1200)]
    public = [row(text, length_kind="human_ref", **label) for text, label in zip(texts, labels, strict=True)]
    own = [row(text, length_kind="llm_median", **label) for text, label in zip(texts, labels, strict=True)]
    assert by_task(public)[code] == pytest.approx(0.82, abs=0.01)
    assert by_task(own)[code] == pytest.approx(0.26, abs=0.01)
    assert by_task(public)[TASKS.index(TaskType.CREATIVE_WRITING)] == pytest.approx(0.95)


def lengths_of(rows: list[Row]) -> np.ndarray:
    return fit_heads(rows, design(rows), np.arange(len(rows))).lengths


def test_only_own_traffic_moves_the_usual_length() -> None:
    code = TASKS.index(TaskType.CODE)
    texts = [f"Write a function {index}" for index in range(400)]
    public = [row(text, task=TaskType.CODE, tokens=20, length_kind="llm_single") for text in texts]
    own = [row(text, task=TaskType.CODE, tokens=20, length_kind="llm_median") for text in texts]
    kept, learned = lengths_of(public)[0], lengths_of(own)[0]
    assert np.exp(kept[code]) == pytest.approx(270.0, rel=0.01)
    assert 20.0 < np.exp(learned[code]) < 30.0  # at a prompt longer than these
    others = np.arange(len(TASKS)) != code
    assert learned[others] == pytest.approx(kept[others])


def test_growth_is_learned_within_sources_only() -> None:
    """Answers of one source are longer than those of the other, to shorter prompts; in both, they grow with them."""
    rows = [
        row(f"Explain {'this matter ' * count}{index}", source=source, task=TaskType.OPEN_CHAT, tokens=base * count)
        for source, base, counts in (("terse", 2, (8, 16, 32)), ("chatty", 80, (2, 4, 8)))
        for index in range(60)
        for count in counts
    ]
    growth = lengths_of([one._replace(length_kind="llm_single") for one in rows])[1, TASKS.index(TaskType.OPEN_CHAT)]
    assert 0.3 < growth < 1.0


def test_rows_that_state_their_length_do_not_teach_the_usual_one() -> None:
    stated = [row(f"Explain case {index} in 500 words.", task=TaskType.OPEN_CHAT, tokens=675) for index in range(30)]
    free = [row(f"Explain case {index}.", task=TaskType.OPEN_CHAT, tokens=100) for index in range(30)]
    assert lengths_of([*stated, *free]) == pytest.approx(lengths_of(free))


def test_figures_of_lengths_are_over_rows_with_a_length() -> None:
    rows = [row("a", tokens=tokens) for tokens in (10, 60, 200, 300)] + [row("b")]
    found = lengths(rows, np.array([20.0, 30.0, 500.0, 100.0, 999.0]))
    assert found.bins == 0.5
    assert (found.long_precision, found.long_recall) == (1.0, 0.5)
    assert found.tau == pytest.approx(4 / 6)
    assert found.log_error == pytest.approx(np.abs(np.log(np.array([20, 30, 500, 100]) / [10, 60, 200, 300])).mean())
    assert found.constant_error == pytest.approx(np.log([110 / 10, 110 / 60, 200 / 110, 300 / 110]).mean(), abs=0.01)
    assert set(lengths([row("b")], np.array([1.0]))) == {None}


def test_lengths_of_people_do_not_count_as_those_of_models() -> None:
    mixed = [row("a", tokens=10), row("b", tokens=1000, length_kind="human_ref")]
    assert lengths(mixed, np.array([10.0, 10.0])).log_error == 0.0


def test_one_length_everywhere_has_no_rank_correlation() -> None:
    found = lengths([row("a", tokens=5), row("b", tokens=5)], np.array([1.0, 2.0]))
    assert found.tau is None
    assert found.long_precision is None
