"""CPU time of classify, forecast and decide for a 2 kB and a 100 kB prompt, and of learning from the outcome.

Goals, in one process on one core: classify, forecast and decide p50 45 µs and p99 150 µs at 2 kB, p50 60 µs and p99
200 µs at 100 kB; learn p50 30 µs. It is thread time: other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import gc
import time

from slipstream_core.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Message, RequestProfile
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ForecastQuery, Learner, subject_of
from slipstream_gateway.decide.route import DecisionInputs, decide, fresh_draws

from tests.benchmarks.harness import Option, Report, benchmark, percentiles

_TURNS = (
    "Agent: Good morning, this is the service team, how can I help you?\n"
    "Customer: Hello, I was charged 129.90 EUR twice for order AB-48213, and I called about it on 12 March.\n"
    "Agent: I am sorry to hear that. May I have your account number, please?\n"
    "Customer: Yes, it is 7731-204, in the name of Maria Jansen.\n"
    "Agent: Thank you. I can see both payments, and I will refund one of them today.\n"
)
STEPS = ("classify", "forecast and decide", "all before the upstream", "learn")


def prompt(size: int) -> str:
    """A call transcript of `size` characters behind its instruction."""
    text = "Summarise this call for the CRM with the usual sections.\n\n" + _TURNS * (size // len(_TURNS) + 1)
    return text[:size]


def decision(
    learner: Learner, request: GenerationRequest, profile: RequestProfile, route: Route
) -> tuple[Subject, Decision]:
    """All steps of the gateway between the classifier and the upstream."""
    subject = subject_of(profile, request.temperature, pair="embedded")
    forecast = learner.forecast(
        ForecastQuery(
            subject,
            profile,
            plain_pool="embedded",
            speculative_pool="embedded",
            plain_load=2.0,
            speculative_load=2.0,
            max_tokens=None,
        )
    )
    return subject, decide(DecisionInputs(request, profile, route, forecast=forecast, draws=fresh_draws()))


def outcome(subject: Subject, made: Decision, index: int) -> Observation:
    """An answer of 180 to 220 tokens at 20 ms a step."""
    fast, tokens = made.arm is Arm.SPECULATIVE, 180 + index % 40
    steps = tokens // 4 if fast else tokens - 1
    drafted = steps * made.draft_length
    return Observation(
        subject=subject,
        request_class=made.request_class,
        arm=made.arm,
        reason=made.reason,
        draft_length=made.draft_length,
        pool="embedded",
        status="ok",
        prompt_tokens=500,
        output_tokens=tokens,
        drafted=drafted,
        accepted=min(tokens - steps, drafted),
        rejections=steps // 2 if fast else 0,
        steps=steps,
        ttft_s=0.05,
        e2e_s=0.05 + 0.02 * steps,
        load=1.0 + index % 3,
        batch_draft_length=float(made.draft_length),
        price_per_gpu_hour=None,
        time_s=0.0,
    )


def steps_us(route: Route, size: int, requests: int) -> dict[str, list[float]]:
    """µs of each step, request by request."""
    classifier, learner = LinearClassifier(default_model()), Learner()
    found: dict[str, list[float]] = {
        "classify": [],
        "forecast and decide": [],
        "all before the upstream": [],
        "learn": [],
    }
    content = prompt(size)
    gc.collect()
    for index in range(requests):
        message = Message(role="user", content=f"{content}{index}")
        request = GenerationRequest(endpoint=Endpoint.CHAT, model=route.model, messages=(message,))
        start = time.thread_time()
        profile = classifier.classify(request)
        classified = time.thread_time()
        subject, made = decision(learner, request, profile, route)
        decided = time.thread_time()
        learner.record(outcome(subject, made, index))
        learnt = time.thread_time()
        times = (classified - start, decided - classified, decided - start, learnt - decided)
        for step, seconds in zip(found.values(), times, strict=True):
            step.append(1e6 * seconds)
    return found


def measure(args: argparse.Namespace, report: Report) -> None:
    route = next(iter(load_file(EMBEDDED_MANIFEST).routes.values()))
    for size in (2_000, 100_000):
        for name, times in steps_us(route, size, args.requests).items():
            report.row(f"{size // 1000} kB: {name}", **percentiles(times, "us"))


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, requests=Option(2000, 50, "requests of each size"))
