"""Sampled requests in a random course of events: the tokens must be those of plain decoding, whatever happened."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.step.engine import Engine

from tests.engine.requests_and_answers import drain, tokens_of

LONGEST_DRAFT = 8
_TEMPERATURES = (0.2, 0.5, 0.7, 1.0, 1.3, 1.5)
_TOP_P = (1.0, 1.0, 0.95, 0.6)
_TOP_K = (0, 0, 50, 3)
# Of each step: the chance that a server gets a request, that a kill switch stops its drafts, and that one request is
# lost by its server.
_ARRIVAL, _KILL, _RESUME = 0.5, 0.03, 0.3


class Events(NamedTuple):
    """The numbers of disturbances of a run."""

    kills: int
    resumptions: int
    drafted: int
    accepted: int


def sampled_requests(
    random_: random.Random, prompts: Sequence[tuple[int, ...]], count: int, *, max_tokens: int
) -> list[GenerationRequest]:
    """`count` plain requests with random prompts, seeds and sampling parameters."""
    return [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=random_.choice(prompts),
            max_tokens=random_.randint(max_tokens // 3, max_tokens),
            sampling=SamplingParams(
                temperature=random_.choice(_TEMPERATURES),
                top_p=random_.choice(_TOP_P),
                top_k=random_.choice(_TOP_K),
                seed=random_.randrange(-(2**63), 2**63),
            ),
        )
        for index in range(count)
    ]


def plain_tokens(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, list[int]]:
    """The answers of plain decoding by request id."""
    return {name: tokens_of(chunks) for name, chunks in drain(engine, list(requests)).items()}


class _Answer:
    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.tokens: list[int] = []


class DisturbedRun:
    """Sends requests with random draft lengths to `engines`, which stand for servers of both arms, in a random order.

    At random steps a kill switch stops all drafts of a server, and a server loses a request, which resumes on another
    one at another draft length.
    """

    def __init__(self, random_: random.Random, engines: Sequence[Engine]) -> None:
        self._random, self._engines = random_, engines
        self._kills = self._resumptions = self._drafted = self._accepted = 0

    def tokens(self, requests: Sequence[GenerationRequest]) -> tuple[dict[str, list[int]], Events]:
        """The answers by request id, and what happened meanwhile."""
        answers = {request.request_id: _Answer(request) for request in requests}
        waiting = self._random.sample(list(answers.values()), len(answers))
        homes: dict[str, Engine] = {}
        while waiting or homes:
            for engine in self._engines:
                if waiting and self._random.random() < _ARRIVAL:
                    answer = waiting.pop()
                    homes[answer.request.request_id] = self._send(answer, engine)
                self._step(engine, answers, homes)
            self._disturb(answers, homes)
        found = {name: answer.tokens for name, answer in answers.items()}
        return found, Events(self._kills, self._resumptions, self._drafted, self._accepted)

    def _send(self, answer: _Answer, engine: Engine) -> Engine:
        changes: dict[str, Any] = {
            "draft_tokens": self._random.randint(0, LONGEST_DRAFT),
            "adaptive": self._random.random() < 0.4,
            "resume_ids": tuple(answer.tokens),
        }
        engine.add(msgspec.structs.replace(answer.request, **changes))
        return engine

    def _step(self, engine: Engine, answers: dict[str, _Answer], homes: dict[str, Engine]) -> None:
        for chunk in engine.step() if engine.busy else ():
            answer = answers[chunk.request_id]
            answer.tokens += chunk.token_ids
            if chunk.last:
                self._drafted += chunk.counts.drafted
                self._accepted += chunk.counts.accepted
                del homes[chunk.request_id]

    def _disturb(self, answers: dict[str, _Answer], homes: dict[str, Engine]) -> None:
        for engine in self._engines:
            if self._random.random() < _KILL:
                engine.stop_drafting()
                self._kills += 1
        if homes and self._random.random() < _RESUME:
            name = self._random.choice(list(homes))
            homes[name].cancel(name)
            others = [engine for engine in self._engines if engine is not homes[name]]
            homes[name] = self._send(answers[name], self._random.choice(others or list(self._engines)))
            self._resumptions += 1


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The position of the first token that differs, None if the answers are equal."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
