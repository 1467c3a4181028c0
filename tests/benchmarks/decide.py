"""Time of classify + decide per request, for a 2 kB and a 100 kB prompt: `python tests/benchmarks/decide.py`.

Goal: p99 at most 200 µs for the 2 kB prompt and 1 ms for the 100 kB prompt, in one process on one core.
"""

from __future__ import annotations

import gc
import time

from slipstream_gateway.classify import RuleClassifier
from slipstream_gateway.manifest import EMBEDDED_MANIFEST, Route, load_file
from slipstream_gateway.routing import decide
from slipstream_gateway.types import Endpoint, GenerationRequest, Message

_TURNS = (
    "Agent: Good morning, this is the service team, how can I help you?\n"
    "Customer: Hello, I was charged 129.90 EUR twice for order AB-48213, and I called about it on 12 March.\n"
    "Agent: I am sorry to hear that. May I have your account number, please?\n"
    "Customer: Yes, it is 7731-204, in the name of Maria Jansen.\n"
    "Agent: Thank you. I can see both payments, and I will refund one of them today.\n"
)
_RUNS = 4000


def prompt(size: int) -> str:
    """A call transcript of `size` characters behind its instruction."""
    text = "Summarise this call for the CRM with the usual sections.\n\n" + _TURNS * (size // len(_TURNS) + 1)
    return text[:size]


def measure(route: Route, size: int) -> list[float]:
    """Seconds of CPU time per request, sorted: what else the machine does must not count."""
    classifier = RuleClassifier()
    content = prompt(size)
    times = []
    gc.collect()
    for index in range(_RUNS):
        message = Message(role="user", content=f"{content}{index}")
        request = GenerationRequest(endpoint=Endpoint.CHAT, model=route.model, messages=(message,))
        start = time.thread_time()
        decide(request, classifier.classify(request), route)
        times.append(time.thread_time() - start)
    return sorted(times)


def main() -> None:
    route = next(iter(load_file(EMBEDDED_MANIFEST).routes.values()))
    print(f"{'prompt':>8} {'p50 us':>8} {'p99 us':>8} {'goal us':>8}   {_RUNS} requests each")
    for size, goal_us in ((2_000, 200), (100_000, 1_000)):
        times = measure(route, size)
        p50, p99 = times[len(times) // 2] * 1e6, times[int(len(times) * 0.99)] * 1e6
        print(f"{size // 1000:>5} kB {p50:>8.0f} {p99:>8.0f} {goal_us:>8}")


if __name__ == "__main__":
    main()
