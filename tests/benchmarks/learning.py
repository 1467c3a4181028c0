"""CPU time of what learning costs a request: `python tests/benchmarks/learning.py`.

Subject and forecast stand before the request is sent, the record after its last byte. Goal: all three together with
the decision at most 150 µs p99; subject and forecast at most 25 µs p50. Two kinds of traffic: templates that come
again with other material, and prompts of which no two are alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

from slipstream_core.observation import Observation, Subject
from slipstream_core.types import (
    Arm,
    Endpoint,
    GenerationRequest,
    Message,
    Reason,
    RequestProfile,
    TaskType,
)
from slipstream_gateway.decide.estimate import ForecastQuery, Learner

_RUNS = 6000
_WARM_UP = 2000
_TEMPLATES = (
    "Summarise this call for the CRM.\n\nTranscript:\n{text}",
    "{text}\n\nList all contract numbers, names and amounts in this text.",
    "What is the status of order {number} in one line?\n\nRecords:\n{text}",
    "Translate into German: {text}",
    "Which label fits this message? Answer with one word from: billing, delivery, other.\n\n{text}",
    "Draft a polite reply to this customer message.\n\n{text}",
)
_SENTENCES = (
    "Customer {number} called on Monday about an invoice.",
    "The parcel AB-{number} was left with a neighbour.",
    "Maria Jansen asked for {number} EUR back and wants an answer this week.",
    "Agent: Thank you, I have opened case {number} for you.",
)
_PROFILE = RequestProfile(
    task=TaskType.SUMMARIZATION, expected_output_tokens=150.0, rare_token_share=0.05, structured_output=False,
    prompt_tokens=500, confidence=0.9, long_probability=0.7, rare_probability=0.1,
)  # fmt: skip


def _text(index: int, chars: int) -> str:
    sentences = [_SENTENCES[(index + at) % len(_SENTENCES)].format(number=index * 7 + at) for at in range(12)]
    text = "\n".join(sentences) + "\n"
    return (text * (chars // len(text) + 1))[:chars]


def templates(chars: int) -> Iterator[str]:
    """Six templates, each request with material of its own."""
    for index in range(_WARM_UP + _RUNS):
        yield _TEMPLATES[index % len(_TEMPLATES)].format(text=_text(index, chars), number=index)


def strangers(chars: int) -> Iterator[str]:
    """Prompts without a common template."""
    for index in range(_WARM_UP + _RUNS):
        words = " ".join(f"w{chr(97 + index // step % 26)}{chr(97 + index % 26)}" for step in range(1, 9))
        yield f"Explain {words} to me.\n\n{_text(index, chars)}"


def _observation(subject: Subject, index: int) -> Observation:
    fast = index % 3 > 0
    return Observation(
        subject=subject, request_class="summarization/long", arm=Arm.SPECULATIVE if fast else Arm.PLAIN,
        reason=Reason.SPECULATION_PAYS, draft_length=4 if fast else 0, pool="p", status="ok", prompt_tokens=500,
        output_tokens=150 + index % 31, drafted=160 if fast else 0, accepted=110 if fast else 0,
        rejections=25 if fast else 0, steps=40 if fast else 150 + index % 31, ttft_s=0.05 + index % 7 / 1000,
        e2e_s=1.0 + index % 11 / 50, load=1.0 + index % 5, batch_draft_length=4.0 if fast else 1.0,
        price_per_gpu_hour=2.0, time_s=float(index),
    )  # fmt: skip


def measure(prompts: Iterator[str]) -> tuple[list[float], list[float]]:
    """Seconds of CPU time of subject with forecast, and of the record, each sorted."""
    learner = Learner()
    before, after = [], []
    gc.collect()
    for index, prompt in enumerate(prompts):
        message = Message(role="user", content=prompt)
        request = GenerationRequest(endpoint=Endpoint.CHAT, model="m", messages=(message,), temperature=0.0)
        start = time.thread_time()
        subject = learner.subject(request, _PROFILE, pair="pair", key_id="0123456789abcdef")
        learner.forecast(ForecastQuery(
            subject, _PROFILE, plain_pool="p", speculative_pool="p", plain_load=2.0, speculative_load=2.0,
            prompt_tokens=500, max_tokens=None,
        ))  # fmt: skip
        middle = time.thread_time()
        learner.record(_observation(subject, index))
        end = time.thread_time()
        if index >= _WARM_UP:
            before.append(middle - start)
            after.append(end - middle)
    return sorted(before), sorted(after)


def main() -> None:
    print(f"{'traffic':>10} {'prompt':>8} {'subject + forecast, us':>24} {'record, us':>20}   {_RUNS} requests each")
    print(f"{'':>10} {'':>8} {'p50':>12} {'p99':>11} {'p50':>9} {'p99':>10}")
    for name, prompts in (("templates", templates), ("strangers", strangers)):
        for chars in (2_000, 100_000):
            before, after = measure(prompts(chars))
            at = [len(before) // 2, int(len(before) * 0.99)]
            figures = [times[place] * 1e6 for times in (before, after) for place in at]
            print(f"{name:>10} {chars // 1000:>5} kB" + "".join(f"{figure:>11.1f}" for figure in figures))


if __name__ == "__main__":
    main()
