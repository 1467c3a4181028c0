"""The embedded pair in the engine: what a draft length saves per class, and what a batch of eight is worth.

    python -m tests.benchmarks.engine [--prompts 12] [--draft-tokens 6] [--threads 1]

Every prompt is answered twice in the same run, plainly and speculatively, in alternating order, one at a time and
greedily, so that both give the same tokens. TPOT is (last token - first token) / (output tokens - 1).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slipstream_engine.embedded.corpus import Task
from slipstream_engine.embedded.workload import ONE_LINE, RARE_TOKENS, STRUCTURED_LONG, workload
from slipstream_engine.engine import Engine
from slipstream_engine.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.types import Chunk, Counts, GenerationRequest, SamplingParams

CLASSES: Mapping[str, Mapping[Task, float]] = {
    "structured, long": STRUCTURED_LONG,
    "SQL and code": {"sql": 0.5, "python": 0.5},
    "freer notes": {"notes": 1.0},
    "rare tokens": RARE_TOKENS,
    "one line": ONE_LINE,
}
SEED = 20_261


class Answer(NamedTuple):
    """One answer: seconds from its first to its last token, seconds in all, its tokens and its counts."""

    decode_s: float
    total_s: float
    token_ids: list[int]
    counts: Counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=12, help="prompts per class")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[6])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    engine = load_engine(
        EngineSettings(
            target="embedded:target", draft="embedded:draft", draft_kind="model", device="cpu", threads=args.threads
        )
    )
    for draft_tokens in args.draft_tokens:
        compare_classes(engine, args.prompts, draft_tokens)
    compare_concurrency(engine, args.prompts, args.draft_tokens[0])


def compare_classes(engine: Engine, prompts: int, draft_tokens: int) -> None:
    """Print one row per class: plain and speculative TPOT, their ratio with its quartiles, α and tokens per step."""
    print(f"one stream, draft length {draft_tokens}")
    print(
        f"{'class':18} {'tokens':>6} {'plain':>11} {'spec':>8} {'plain/spec':>10} {'quartiles':>13} {'α':>6} {'E':>5}"
    )
    for name, mix in CLASSES.items():
        pairs = [
            _both(engine, request, index) for index, request in enumerate(_requests(engine, mix, prompts, draft_tokens))
        ]
        print(_row(name, [pair for pair in pairs if len(pair[0].token_ids) > 1]))


def _row(name: str, pairs: Sequence[tuple[Answer, Answer]]) -> str:
    plain_s = sum(plain.decode_s for plain, _ in pairs)
    spec_s = sum(spec.decode_s for _, spec in pairs)
    tokens = sum(len(plain.token_ids) - 1 for plain, _ in pairs)
    ratios = sorted(plain.decode_s / spec.decode_s for plain, spec in pairs)
    low, _, high = statistics.quantiles(ratios, n=4)
    drafted = sum(spec.counts.drafted for _, spec in pairs)
    accepted = sum(spec.counts.accepted for _, spec in pairs)
    steps = sum(spec.counts.steps for _, spec in pairs)
    return (
        f"{name:18} {tokens / len(pairs):6.0f} {plain_s / tokens * 1e3:8.2f} ms {spec_s / tokens * 1e3:5.2f} ms "
        f"{plain_s / spec_s:10.2f} {low:6.2f}-{high:<6.2f} {accepted / max(drafted, 1):6.2f} {tokens / steps:5.2f}"
    )


def compare_concurrency(engine: Engine, prompts: int, draft_tokens: int) -> None:
    """Print tokens/s of eight concurrent requests over one at a time, the same requests, for both arms."""
    for arm, length in (("plain", 0), ("speculative", draft_tokens)):
        requests = list(_requests(engine, STRUCTURED_LONG, max(16, prompts), length))
        alone_s = sum(_run(engine, [request])[0].total_s for request in requests)
        start = time.perf_counter()
        together = _run(engine, requests)
        together_s = time.perf_counter() - start
        tokens = sum(len(answer.token_ids) for answer in together)
        print(
            f"8 concurrent over 1, {arm}: {tokens / together_s:.0f} / {tokens / alone_s:.0f} tokens/s "
            f"= {alone_s / together_s:.2f}"
        )


def _requests(
    engine: Engine, mix: Mapping[Task, float], prompts: int, draft_tokens: int
) -> Iterable[GenerationRequest]:
    for index, drawn in enumerate(workload(SEED, prompts, mix)):
        yield GenerationRequest(
            request_id=str(index),
            prompt_ids=engine.tokenizer.render_chat(drawn.messages),
            max_tokens=drawn.max_tokens,
            sampling=SamplingParams(temperature=0.0),
            draft_tokens=draft_tokens,
        )


def _both(engine: Engine, request: GenerationRequest, index: int) -> tuple[Answer, Answer]:
    """The plain and the speculative answer to one prompt; which comes first alternates."""
    plain = GenerationRequest(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        max_tokens=request.max_tokens,
        sampling=request.sampling,
    )
    order = (plain, request) if index % 2 else (request, plain)
    answers = {id(one): _run(engine, [one])[0] for one in order}
    pair = answers[id(plain)], answers[id(request)]
    if pair[0].token_ids != pair[1].token_ids:
        raise SystemExit(f"prompt {index}: speculation changed the answer; its speed means nothing")
    return pair


def _run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Answer]:
    """Decode `requests` together, to their ends."""
    chunks: dict[str, list[tuple[float, Chunk]]] = {request.request_id: [] for request in requests}
    start = time.perf_counter()
    for request in requests:
        engine.add(request)
    while engine.busy:
        step = engine.step()
        now = time.perf_counter()
        for chunk in step:
            chunks[chunk.request_id].append((now, chunk))
    return [_answer(start, chunks[request.request_id]) for request in requests]


def _answer(start: float, chunks: Sequence[tuple[float, Chunk]]) -> Answer:
    first, last = chunks[0][0], chunks[-1][0]
    token_ids = [token for _, chunk in chunks for token in chunk.token_ids]
    return Answer(last - first, last - start, token_ids, chunks[-1][1].counts)


if __name__ == "__main__":
    main()
