"""The embedded pair in an engine of this process, and SmolLM2 with each of its drafts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slipstream_engine.contract.types import Chunk, Counts, GenerationRequest, SamplingParams
from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import ONE_LINE, RARE_TOKENS, STRUCTURED_LONG, workload
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine

CLASSES: Mapping[str, Mapping[Task, float]] = {
    "structured, long": STRUCTURED_LONG,
    "SQL and code": {"sql": 0.5, "python": 0.5},
    "freer notes": {"notes": 1.0},
    "rare tokens": RARE_TOKENS,
    "one line": ONE_LINE,
}


class Answer(NamedTuple):
    """One answer: its text, its tokens, and the seconds since the start at each token, by the clock and of CPU time."""

    text: str
    token_ids: list[int]
    at_s: list[float]
    cpu_s: list[float]
    counts: Counts

    @property
    def decode_s(self) -> float:
        return self.at_s[-1] - self.at_s[0]


def embedded_engine(**settings: Any) -> Engine:
    pair = {"target": "embedded:target", "draft": "embedded:draft", "draft_kind": "model", "device": "cpu"}
    return load_engine(EngineSettings(**{**pair, "threads": 1, **settings}))


def requests(
    engine: Engine, mix: Mapping[Task, float], count: int, draft_tokens: int, *, seed: int
) -> list[GenerationRequest]:
    """Greedy requests of the embedded workload."""
    return [
        GenerationRequest(
            request_id=str(index),
            prompt_ids=engine.tokenizer.render_chat(drawn.messages),
            max_tokens=drawn.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            draft_tokens=draft_tokens,
        )
        for index, drawn in enumerate(workload(seed, count, mix))
    ]


def decode(engine: Engine, asked: Sequence[GenerationRequest]) -> list[Answer]:
    """Decodes `asked` together, to their ends."""
    chunks: dict[str, list[tuple[float, float, Chunk]]] = {request.request_id: [] for request in asked}
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for request in asked:
        engine.add(request)
    while engine.busy:
        step = engine.step()
        at_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
        for chunk in step:
            chunks[chunk.request_id].append((at_s, cpu_s, chunk))
    return [_answer(chunks[request.request_id]) for request in asked]


def _answer(chunks: Sequence[tuple[float, float, Chunk]]) -> Answer:
    return Answer(
        "".join(chunk.text for _, _, chunk in chunks),
        [token for _, _, chunk in chunks for token in chunk.token_ids],
        [at_s for at_s, _, chunk in chunks for _ in chunk.token_ids],
        [cpu_s for _, cpu_s, chunk in chunks for _ in chunk.token_ids],
        chunks[-1][2].counts,
    )


def both_arms(
    engine: Engine, mix: Mapping[Task, float], count: int, draft_tokens: int, *, seed: int
) -> list[tuple[Answer, Answer]]:
    """The plain and the speculative answer to each request, one at a time, in alternating order.

    Raises:
        SystemExit: an answer differs.
    """
    arms = {length: requests(engine, mix, count, length, seed=seed) for length in (0, draft_tokens)}
    pairs = []
    for index in range(count):
        order = (0, draft_tokens) if index % 2 else (draft_tokens, 0)
        answers = {length: decode(engine, [arms[length][index]])[0] for length in order}
        if answers[0].token_ids != answers[draft_tokens].token_ids:
            raise SystemExit(f"prompt {index}: speculation changed the answer; its speed means nothing")
        pairs.append((answers[0], answers[draft_tokens]))
    return pairs
