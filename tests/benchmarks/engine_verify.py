"""What the verification kernel is worth end to end: step time of the engine on a GPU, with it and with the reference.

The embedded pair decodes the same requests with both, in turns. Its vocabulary is small, so its head is also widened
with copies of its rows: ties go to the lowest id, so greedy answers stay what they are, and the verification has as
much to read as that of a large model. Greedy answers must be equal, or nothing is printed. Without a GPU nothing is
measured; a smoke run decodes with the reference alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import msgspec
import torch
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.drafts.pool import DraftPool
from slipstream_engine.drafts.sources import ModelDrafts
from slipstream_engine.embedded.workload import STRUCTURED_LONG, workload
from slipstream_engine.model.checkpoint import load_weights
from slipstream_engine.model.config import load_config
from slipstream_engine.model.model import Model
from slipstream_engine.settings import resolve_source
from slipstream_engine.step.engine import Engine
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_kernels.backend import Backend

from tests.benchmarks.harness import Option, Report, benchmark

SEED = 20_261
BACKENDS: tuple[Backend, ...] = ("reference", "kernel")
_PREFILL_CHUNK_TOKENS = 512


def build(rows: int, slots: int, draft_tokens: int, device: str, dtype: torch.dtype) -> Engine:
    """The embedded pair; `rows` other than 0 widens the target's head to as many tokens."""
    folder = resolve_source("embedded:target")
    config, place = load_config(folder), torch.device(device)
    weights = load_weights(folder, config, place, dtype)
    if rows:
        copies = -(-rows // config.vocab_rows)
        weights = weights._replace(head=weights.head.repeat(copies, 1)[:rows].contiguous())
        config = msgspec.structs.replace(config, vocab_rows=rows)
    target = Model(config, weights, context_tokens=config.context_tokens, device=place)
    draft = Model.load(
        resolve_source("embedded:draft"), device=place, dtype=dtype, context_tokens=target.context_tokens
    )
    tokenizer = Tokenizer.load(folder, checkpoint=folder)
    return Engine(
        target,
        tokenizer,
        DraftPool({"draft": ModelDrafts(draft, slots, config.vocab_rows)}),
        slots=slots,
        max_draft_tokens=draft_tokens,
        max_waiting=slots,
        prefill_chunk_tokens=_PREFILL_CHUNK_TOKENS,
    )


def compare(
    engine: Engine, requests: int, temperature: float, backends: Sequence[Backend], args: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds per step of each backend, one number per round, the backends taking turns.

    Raises:
        SystemExit: a greedy answer differs between them.
    """
    times: dict[str, list[float]] = {name: [] for name in backends}
    answers: dict[str, list[list[int]]] = {}
    for number in range(args.rounds + 1):
        for backend in backends if number % 2 else tuple(reversed(backends)):
            engine.verify_backend = backend
            step_ms, answers[backend] = decode(engine, requests, temperature, args)
            if number:  # the first round compiles
                times[backend].append(step_ms)
        if temperature == 0 and any(answers[name] != answers[backends[0]] for name in backends):
            raise SystemExit("the backends' greedy answers differ; their speed means nothing")
    return times


def decode(
    engine: Engine, requests: int, temperature: float, args: argparse.Namespace
) -> tuple[float, list[list[int]]]:
    """Decode `requests` together: milliseconds per step after the prompts are in, and the answers."""
    for index, drawn in enumerate(workload(SEED, requests, STRUCTURED_LONG)):
        engine.add(
            GenerationRequest(
                request_id=str(index),
                prompt_ids=engine.tokenizer.render_chat(drawn.messages),
                max_tokens=min(args.tokens, drawn.max_tokens),
                sampling=SamplingParams(temperature=temperature, seed=index),
                draft_tokens=args.draft_tokens,
            )
        )
    answers: list[list[int]] = [[] for _ in range(requests)]
    steps, waiting, seconds = 0, requests, 0.0
    while engine.busy:
        start = time.perf_counter()
        chunks = engine.step()  # ends with the tokens on the host: the device is done
        elapsed = time.perf_counter() - start
        if not waiting:
            steps, seconds = steps + 1, seconds + elapsed
        for chunk in chunks:
            waiting -= not answers[int(chunk.request_id)] and bool(chunk.token_ids)
            answers[int(chunk.request_id)] += chunk.token_ids
    return seconds / max(steps, 1) * 1e3, answers


def measure(args: argparse.Namespace, report: Report) -> None:
    if torch.cuda.is_available():
        report.note(torch.cuda.get_device_name())
        place, dtype, backends = "cuda", torch.bfloat16, BACKENDS
    elif args.smoke:
        place, dtype, backends = "cpu", torch.float32, BACKENDS[:1]
    else:
        raise SystemExit("no GPU here: the kernel cannot run in the engine, nothing was measured")
    for rows in args.vocabulary:
        for requests in args.requests:
            engine = build(rows, requests, args.draft_tokens, place, dtype)
            for temperature in (0.0, 0.8) if rows == 0 else (0.0,):
                times = compare(engine, requests, temperature, backends, args)
                medians = {f"{name}_ms": statistics.median(steps) for name, steps in times.items()}
                report.row(f"V {rows or 'own'}, {requests} requests, temperature {temperature:g}", **medians)


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option([1, 8, 64], [1], "at once"),
        vocabulary=Option([0, 128_256, 151_936], [0], "rows of the head; 0: the pair's own"),
        draft_tokens=Option(4, 4, "draft length"),
        rounds=Option(5, 1, "turns of each backend, after one that compiles"),
        tokens=Option(96, 16, "of an answer at most"),
    )
