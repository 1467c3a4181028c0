"""Collects a target's answers to prompts, as rows to train on.

    python -m slipstream_training.collect --target FOLDER --prompts FILE.jsonl --out ANSWERS.jsonl --tokens 0.6

`--prompts` has a JSON object with OpenAI's `messages` in each line; they are taken in a seeded random order. Most
answers are greedy, the others are sampled. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from slipstream_engine.contract.types import GenerationRequest, SamplingParams
from slipstream_engine.errors import RequestError
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine
from slipstream_engine.text.tokenizer import Tokenizer

from slipstream_training.answers import Line
from slipstream_training.models.precision import training_dtype

_MOST_PROMPT, _MOST_ANSWER = 448, 192
_SAMPLED_SHARE, _TEMPERATURE = 0.25, 0.7
_REPORT_EVERY = 128


def prompts_of(file: Path, tokenizer: Tokenizer, seed: int) -> Iterator[GenerationRequest]:
    """Requests for the prompts of `file` in random order, without long ones."""
    rng = random.Random(seed)
    lines = file.read_bytes().splitlines()
    rng.shuffle(lines)
    for number, line in enumerate(lines):
        sampling = SamplingParams(temperature=_TEMPERATURE if rng.random() < _SAMPLED_SHARE else 0.0, seed=number)
        try:
            ids = tokenizer.render_chat(msgspec.json.decode(line)["messages"])
        except RequestError:  # such as a role that the template does not know
            continue
        if len(ids) <= _MOST_PROMPT:
            yield GenerationRequest(
                request_id=str(number), prompt_ids=tuple(ids), max_tokens=_MOST_ANSWER, sampling=sampling
            )


def answers(engine: Engine, requests: Iterator[GenerationRequest], slots: int) -> Iterator[Line]:
    """The answers to `requests`, as they end; `slots` are decoded at once."""
    running: dict[str, tuple[GenerationRequest, list[int]]] = {}
    while True:
        for request in itertools.islice(requests, slots - len(running)):
            running[request.request_id] = request, []
            engine.add(request)
        if not running:
            return
        for chunk in engine.step():
            running[chunk.request_id][1].extend(chunk.token_ids)
            if chunk.last:
                request, ids = running.pop(chunk.request_id)
                prompt = list(request.prompt_ids)
                yield Line(input_ids=prompt + ids, loss_mask=[0] * len(prompt) + [1] * len(ids))


def _prompt(line: Line) -> tuple[int, ...]:
    return tuple(line.input_ids[: line.loss_mask.index(1)])


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, help="checkpoint folder of the target")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with `messages`")
    parser.add_argument("--out", type=Path, required=True, help="file of the answers, also continued")
    parser.add_argument("--tokens", type=float, default=0.6, help="tokens of all new answers, in millions")
    parser.add_argument("--slots", type=int, default=64, help="answers decoded at once")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    # bfloat16 is much faster where the CPU has it, and its answers are as good for training.
    dtype = str(training_dtype("cpu")).removeprefix("torch.")
    settings = {"target": args.target, "max_slots": args.slots, "device": "cpu", "dtype": dtype}
    engine = load_engine(msgspec.convert({**settings, "context_tokens": _MOST_PROMPT + _MOST_ANSWER}, EngineSettings))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    started, tokens = time.monotonic(), 0
    with args.out.open("ab+", buffering=0) as file:  # whole lines
        file.seek(0)
        done = {_prompt(msgspec.json.decode(line, type=Line)) for line in file}
        prompts = prompts_of(args.prompts, engine.tokenizer, args.seed)
        requests = (request for request in prompts if request.prompt_ids not in done)
        for number, line in enumerate(answers(engine, requests, args.slots), len(done) + 1):
            file.write(msgspec.json.encode(line) + b"\n")
            tokens += sum(line.loss_mask)
            if number % _REPORT_EVERY == 0:
                rate = tokens / (time.monotonic() - started)
                print(f"{number} answers, {tokens / 1e6:.3f} M tokens, {rate:.0f} tokens/s", flush=True)
            if tokens >= args.tokens * 1e6:
                return


if __name__ == "__main__":
    main()
