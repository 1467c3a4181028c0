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
    return heads.by_task[:, HEADS.index("long")]


def test_a_public_source_hardly_moves_the_stated_share_and_own_traffic_does() -> None:
    code = TASKS.index(TaskType.CODE)
    texts = [f"Write a function {index}" for index in range(1200)]
    labels = [{"task": TaskType.CODE, "tokens": 20 + 200 * (index % 20 == 0)} for index in range(1200)]
    public = [row(text, length_kind="human_ref", **label) for text, label in zip(texts, labels, strict=True)]
    own = [row(text, length_kind="llm_median", **label) for text, label in zip(texts, labels, strict=True)]
    assert by_task(public)[code] == pytest.approx(0.7, abs=0.07)
    assert by_task(own)[code] == pytest.approx(0.21, abs=0.02)
    assert by_task(public)[TASKS.index(TaskType.CREATIVE_WRITING)] == pytest.approx(0.85)


def test_figures_of_lengths_are_over_rows_with_a_length() -> None:
    rows = [row("a", tokens=tokens) for tokens in (10, 60, 200, 300)] + [row("b")]
    found = lengths(rows, np.array([20.0, 30.0, 500.0, 100.0, 999.0]))
    assert found.bins == 0.5
    assert (found.long_precision, found.long_recall) == (1.0, 0.5)
    assert found.tau == pytest.approx(4 / 6)
    assert lengths([row("b")], np.array([1.0])) == (None, None, None, None)


def test_one_length_everywhere_has_no_rank_correlation() -> None:
    found = lengths([row("a", tokens=5), row("b", tokens=5)], np.array([1.0, 2.0]))
    assert found.tau is None
    assert found.long_precision is None
