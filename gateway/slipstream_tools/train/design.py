"""Rows as matrices, computed by the functions that the classifier uses at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from slipstream_gateway.decide.classify.hashing import RUN_WEIGHT, TABLE_ROWS, encode, features
from slipstream_gateway.decide.classify.prompt import Prompt, pieces

from slipstream_tools.train.rows import Row

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_NONE = np.empty(0, np.int64)


class Design(NamedTuple):
    """R rows: `words` (R, TABLE_ROWS) sparse, `counts` (R, COUNTS), the prompts themselves."""

    words: Any
    counts: Floats
    prompts: list[Prompt]


def design(rows: Sequence[Row]) -> Design:
    """The design of `rows`."""
    prompts = [pieces(row.request) for row in rows]
    words = _matrix([prompt.text for prompt in prompts]) + _matrix([prompt.system for prompt in prompts])
    return Design(
        words=words.tocsr().astype(np.float32),
        counts=np.array([prompt.counts for prompt in prompts], np.float32),
        prompts=prompts,
    )


def _matrix(texts: Sequence[str]) -> Any:
    """Each feature of a text once, over the root of their number; a zero row for an empty text."""
    columns, values = [], []
    for text in texts:
        found = features(encode(text)) if text else None
        rows, last = np.unique(found.rows[::-1], return_index=True) if found else (_NONE, _NONE)
        weights = np.full(rows.size, max(rows.size, 1) ** -0.5, np.float32)
        if found:
            weights[found.rows.size - 1 - last < found.runs] *= RUN_WEIGHT
        columns.append(rows)
        values.append(weights)
    pointers = np.cumsum([0, *(rows.size for rows in columns)])
    return sparse.csr_matrix(
        (np.concatenate(values), np.concatenate(columns), pointers), shape=(len(texts), TABLE_ROWS)
    )
