"""Time of classify + forecast + decide per request, for a 2 kB and a 100 kB prompt, and of learning from its outcome:
`python tests/benchmarks/decide.py`.

Goals, in one process on one core: p50 60 µs and p99 150 µs for the 2 kB prompt, p99 1 ms for the 100 kB prompt; the
forecast with the decision take 20 µs (p50); learning with the next forecast and decision p99 150 µs.
"""

from __future__ import annotations

import gc
import time

from slipstream_core.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_core.observation import Observation, Subject
from slipstream_core.types import Arm, Decision, Endpoint, GenerationRequest, Message, RequestProfile
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ForecastQuery, Learner
from slipstream_gateway.decide.route import DecisionInputs, RequestDraws, decide

_TURNS = (
    "Agent: Good morning, this is the service team, how can I help you?\n"
    "Customer: Hello, I was charged 129.90 EUR twice for order AB-48213, and I called about it on 12 March.\n"
    "Agent: I am sorry to hear that. May I have your account number, please?\n"
    "Customer: Yes, it is 7731-204, in the name of Maria Jansen.\n"
    "Agent: Thank you. I can see both payments, and I will refund one of them today.\n"
)
_RUNS = 2000
_DRAWS = RequestDraws(b"benchmark")


def prompt(size: int) -> str:
    """A call transcript of `size` characters behind its instruction."""
    text = "Summarise this call for the CRM with the usual sections.\n\n" + _TURNS * (size // len(_TURNS) + 1)
    return text[:size]


class Steps:
    """Seconds of CPU time per request and step, each sorted: what else the machine does must not count."""

    def __init__(self) -> None:
        self.classify: list[float] = []
        self.decide: list[float] = []
        self.learn: list[float] = []

    def sort(self) -> Steps:
        for times in (self.classify, self.decide, self.learn):
            times.sort()
        return self


def decision(
    learner: Learner, request: GenerationRequest, profile: RequestProfile, route: Route
) -> tuple[Subject, Decision]:
    """What the gateway does between the classifier and the upstream."""
    subject = learner.subject(request, profile, pair="embedded", key_id="anonymous")
    forecast = learner.forecast(
        ForecastQuery(
            subject,
            profile,
            plain_pool="embedded",
            speculative_pool="embedded",
            plain_load=2.0,
            speculative_load=2.0,
            prompt_tokens=profile.prompt_tokens,
            max_tokens=None,
        )
    )
    return subject, decide(DecisionInputs(request, profile, route, forecast=forecast, draws=_DRAWS.of("benchmark")))


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


def measure(route: Route, size: int) -> Steps:
    classifier, learner, steps = LinearClassifier(default_model()), Learner(), Steps()
    content = prompt(size)
    gc.collect()
    for index in range(_RUNS):
        message = Message(role="user", content=f"{content}{index}")
        request = GenerationRequest(endpoint=Endpoint.CHAT, model=route.model, messages=(message,))
        start = time.thread_time()
        profile = classifier.classify(request)
        classified = time.thread_time()
        subject, made = decision(learner, request, profile, route)
        decided = time.thread_time()
        learner.record(outcome(subject, made, index))
        learnt = time.thread_time()
        steps.classify.append(classified - start)
        steps.decide.append(decided - classified)
        steps.learn.append(learnt - decided)
    return steps.sort()


def main() -> None:
    route = next(iter(load_file(EMBEDDED_MANIFEST).routes.values()))
    print(f"{'':>36} {'p50 us':>8} {'p99 us':>8}   {_RUNS} requests each, CPU time")
    for size in (2_000, 100_000):
        found = measure(route, size)
        for name, times in (
            ("classify", found.classify),
            ("subject, forecast, decide", found.decide),
            ("learn", found.learn),
        ):
            p50, p99 = times[len(times) // 2] * 1e6, times[int(len(times) * 0.99)] * 1e6
            print(f"{size // 1000:>5} kB  {name:<27} {p50:>8.1f} {p99:>8.1f}")


if __name__ == "__main__":
    main()
