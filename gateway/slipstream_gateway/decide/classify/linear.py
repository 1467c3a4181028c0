"""The trained classifier: a sum of table rows, a softmax over tasks, logistic heads.

The rows of a text's features are summed, by compiled code where the wheel has it (`_row_sum.c`), else by NumPy; the sum
is divided by the root of their number. A system prompt adds a sum of its own, which is cached, because system prompts
recur.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import lru_cache
from operator import mul

import msgspec
import numpy as np
from slipstream_core.types import MEDIUM_MAX_TOKENS, GenerationRequest, RequestProfile, TaskType

from slipstream_gateway.decide.classify.hashing import (
    BYTE_VALUES,
    IN_WORD,
    MAX_BYTES,
    RUN_WEIGHT,
    WORDS_FROM,
    encode,
    features,
    word_rows,
)
from slipstream_gateway.decide.classify.length import StatedLength, in_conversation, stated_length, with_tools
from slipstream_gateway.decide.classify.model import (
    COLUMNS,
    HEADS,
    LENGTH_BY_WORDS,
    LENGTH_WEIGHTS,
    MAX_TOKENS,
    SHARES,
    STATED_SLOPE,
    TASK_WEIGHTS,
    TASKS,
    Floats,
    Model,
)
from slipstream_gateway.decide.classify.prompt import Prompt, pieces

_row_sum: Callable[..., int] | None = None  # None in a wheel without compiled code
with contextlib.suppress(ImportError):
    from slipstream_gateway.decide.classify._row_sum import row_sum

    _row_sum = row_sum

_SYSTEM_PROMPTS_KEPT = 1024
_WORDS_SHOWN = 5
_COLUMNS_PADDED = 16
_MAX_LOG = math.log(MAX_TOKENS)
_ORDER = np.arange(3 * MAX_BYTES, dtype=np.int32)


class LinearClassifier:
    """A model and the cached sums of recent system prompts; for one event loop."""

    def __init__(self, model: Model) -> None:
        # Rows of 16 numbers, one cache line each, are faster to gather.
        self._table = np.zeros((len(model.table), _COLUMNS_PADDED), np.float32)
        self._table[:, :COLUMNS] = model.table
        self._table[:WORDS_FROM] *= RUN_WEIGHT
        self._last = np.zeros(len(model.table), np.int32)
        self._seen, self._stamp = np.zeros(len(model.table), np.uint32), 0
        self._bias = np.zeros(_COLUMNS_PADDED, np.float32)
        self._bias[:COLUMNS] = model.bias
        self._table[:, : len(TASKS)] /= model.temperature
        self._bias[: len(TASKS)] /= model.temperature
        self._counts: list[list[float]] = [column if any(column) else [] for column in model.counts.T.tolist()]
        self._by_task: list[list[float]] = model.by_task.clip(*SHARES).T.tolist()
        self._lengths: list[list[float]] = model.lengths.tolist()
        self._shares: list[float] = model.shares.tolist()
        self._system = lru_cache(_SYSTEM_PROMPTS_KEPT)(self._sum)

    def classify(self, request: GenerationRequest) -> RequestProfile:
        """The profile of `request`, without evidence. Never raises, whatever the prompt contains."""
        prompt = pieces(request)
        return self._profile(request, prompt, stated_length(prompt.text, prompt.system))

    def explain(self, request: GenerationRequest) -> RequestProfile:
        """The same profile with its evidence: the strongest words for the task, and the source of the length."""
        prompt = pieces(request)
        stated = stated_length(prompt.text, prompt.system)
        profile = self._profile(request, prompt, stated)
        words = [*self._strongest(prompt.text, profile.task), *self._strongest(prompt.system, profile.task)]
        usual = f"usual for the task and its words, over {prompt.material_tokens:.0f} tokens"
        evidence = [
            f"task {profile.task}: {', '.join(dict.fromkeys(words)) or 'no indicative words'}",
            f"length: {f'stated: {stated.words!r}' if stated else usual}",
            f"rare tokens: {profile.rare_probability:.0%} likely to fill the answer",
        ]
        if request.max_tokens is not None and request.max_tokens <= profile.expected_output_tokens:
            evidence.append(f"max_tokens {request.max_tokens} caps the length")
        return msgspec.structs.replace(profile, evidence=tuple(evidence))

    def _sum(self, text: str) -> Floats:
        """The table's columns summed over the features of `text`, over the root of their number; each feature counts
        once."""
        data = encode(text)
        if _row_sum is not None:
            self._stamp += 1
            total: Floats = np.empty(_COLUMNS_PADDED, np.float32)
            count = _row_sum(data, BYTE_VALUES, IN_WORD, self._table, self._seen, self._stamp, total)
            total *= max(count, 1) ** -0.5
            return total
        return self._numpy_sum(data)

    def _numpy_sum(self, data: bytes) -> Floats:
        """As `_sum`, without compiled code."""
        rows = features(data).rows
        order = _ORDER[: rows.size]
        # A row counts once, at its last occurrence: the last of several writes to one index remains.
        self._last[rows] = order
        once = self._last.take(rows) == order
        count = max(np.count_nonzero(once), 1)
        total: Floats = once.astype(np.float32) @ self._table.take(rows, axis=0)
        total *= count**-0.5
        return total

    def _outputs(self, prompt: Prompt) -> list[float]:
        """The logit of each task, then of each of `HEADS`, from the words alone."""
        total = self._sum(prompt.text)
        total += self._bias
        if prompt.system:
            total += self._system(prompt.system)
        outputs: list[float] = total.tolist()
        return outputs

    def _profile(self, request: GenerationRequest, prompt: Prompt, stated: StatedLength | None) -> RequestProfile:
        outputs = self._outputs(prompt)
        # For so few numbers, plain Python is faster than NumPy.
        logits = outputs[: len(TASKS)]
        top = max(logits)
        powers = [math.exp(logit - top) for logit in logits]
        confidence = 1.0 / sum(powers)
        chances = [power * confidence for power in powers]
        most = request.max_tokens
        tokens = with_tools(in_conversation(self._usual(outputs[len(TASKS)], chances, prompt), prompt), request)
        if stated is not None:
            tokens = min(max(tokens, stated.least), stated.most)
        tokens = min(tokens, MAX_TOKENS if most is None else most)
        length = math.log(max(tokens, 1.0) / MEDIUM_MAX_TOKENS)
        long, rare, speculate = self._chances(outputs, chances, prompt, length)
        if stated is not None:
            long = _sigmoid(STATED_SLOPE * length)
        common_share, rare_share = self._shares
        return RequestProfile(
            task=TASKS[logits.index(top)],
            expected_output_tokens=round(tokens, 1),
            rare_token_share=common_share + (rare_share - common_share) * rare,
            structured_output=request.structured_output or prompt.mentions_json,
            prompt_tokens=prompt.prompt_tokens,
            confidence=confidence,
            long_probability=0.0 if most is not None and most <= MEDIUM_MAX_TOKENS else long,
            rare_probability=rare,
            speculate_probability=speculate,
        )

    def _usual(self, words: float, chances: list[float], prompt: Prompt) -> float:
        """The usual tokens of an answer: the median of the tasks' usual tokens by the `chances` of the tasks, raised or
        lowered by `words`, the logit of a long answer. A mean would lie between short and long tasks, where no answer
        is."""
        size = prompt.size
        ordered = sorted(
            [(one + size * more, chance) for one, more, chance in zip(*self._lengths, chances, strict=True)]
        )
        below = before = 0.0  # the chance of shorter answers, and with half of the last task's
        median = ordered[0][0]
        for log_tokens, chance in ordered:
            middle = below + 0.5 * chance
            if middle >= 0.5:
                median += (0.5 - before) / (middle - before) * (log_tokens - median)
                break
            below, before, median = below + chance, middle, log_tokens
        return math.exp(min(max(median + LENGTH_BY_WORDS * words, 0.0), _MAX_LOG))

    def _chances(self, outputs: list[float], chances: list[float], prompt: Prompt, length: float) -> list[float]:
        """The probability of each of `HEADS`, by words and counts, task, and `length`, the log of the expected tokens
        relative to `MEDIUM_MAX_TOKENS`."""
        found = []
        for head in range(len(HEADS)):
            logit = outputs[len(TASKS) + head]
            if self._counts[head]:
                logit += _dot(self._counts[head], prompt.counts)
            share = _dot(self._by_task[head], chances)
            logit += TASK_WEIGHTS[head] * math.log(share / (1.0 - share)) + LENGTH_WEIGHTS[head] * length
            found.append(_sigmoid(logit))
        return found

    def _strongest(self, text: str, task: TaskType) -> list[str]:
        """The words of `text` with the highest weights for `task` relative to the mean of all tasks, highest first."""
        raw = encode(text)
        found = features(raw)
        columns = self._table.take(word_rows(found), axis=0)[:, : len(TASKS)]
        speaks = columns[:, TASKS.index(task)] - columns.mean(axis=1)
        shown: dict[str, None] = {}
        for index in np.argsort(-speaks).tolist():
            if speaks[index] <= 0 or len(shown) == _WORDS_SHOWN:
                break
            shown[raw[found.begins[index] : found.ends[index]].decode("utf-8", "replace").lower()] = None
        return list(shown)


def _dot(weights: list[float], values: tuple[float, ...] | list[float]) -> float:
    total: float = sum(map(mul, weights, values))
    return total


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(logit, -30.0), 30.0)))
