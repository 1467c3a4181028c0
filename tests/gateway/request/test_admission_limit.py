"""The limit on what runs at once, against a simulated server that decodes a batch. Time is a number here."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_gateway.admission.limit import WINDOW_S, WINDOW_SAMPLES, AdaptiveLimit, Sample

PLACES, LEAST, MOST = 24, 16, 512
TPOT_S, PREFILL_S_PER_BYTE = 0.02, 1e-4


class Server:
    """Closed loop: as many clients as are asked for send one request after the other; `PLACES` decode together, the
    others wait at the server, or, beyond the limit, at the gateway."""

    def __init__(self, limit: AdaptiveLimit, *, seed: int = 1, stream: bool = True) -> None:
        self.limit = limit
        self.served = 0
        self.ttft_s: list[float] = []
        self.prompt_bytes: Callable[[], int] = lambda: 1000
        self.output_tokens: Callable[[], int] = lambda: self.chance.randint(20, 100)
        self.now_s = 0.0
        self.chance = random.Random(seed)
        self._stream = stream
        self._events: list[tuple[float, int, tuple[float, float, int, int]]] = []
        self._numbers = count()
        self._clients = self._in_flight = self._running = self._at_gateway = 0
        self._at_server: list[float] = []

    def run(self, *, clients: int, seconds: float) -> None:
        """Goes on for `seconds` with `clients`."""
        end_s, self.served, self.ttft_s = self.now_s + seconds, 0, []
        for _ in range(clients - self._clients):
            self._arrive()
        self._clients = max(self._clients, clients)
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, done = heapq.heappop(self._events)
            self._end(*done)
            if self._clients > clients:
                self._clients -= 1
            else:
                self._arrive()
        self.now_s = end_s

    def _arrive(self) -> None:
        if self._in_flight < self.limit.value and not self._at_gateway:
            self._send()
        else:
            self._at_gateway += 1

    def _send(self) -> None:
        self._in_flight += 1
        if self._running < PLACES:
            self._start(self.now_s)
        else:
            self._at_server.append(self.now_s)

    def _start(self, sent_s: float) -> None:
        self._running += 1
        pace = 1.0 + self._running / PLACES
        prompt, tokens = self.prompt_bytes(), self.output_tokens()
        ttft_s = self.now_s - sent_s + (0.02 + prompt * PREFILL_S_PER_BYTE) * pace * self.chance.lognormvariate(0, 0.2)
        end_s = sent_s + ttft_s + tokens * TPOT_S * pace
        heapq.heappush(self._events, (end_s, next(self._numbers), (end_s - sent_s, ttft_s, prompt, tokens)))

    def _end(self, e2e_s: float, ttft_s: float, prompt: int, tokens: int) -> None:
        self._running -= 1
        if self._at_server:
            self._start(self._at_server.pop(0))
        sample = Sample(prompt, ttft_s if self._stream else None, e2e_s, tokens)
        self.limit.record(sample, in_flight=self._in_flight, now_s=self.now_s)
        self.served += 1
        self.ttft_s.append(ttft_s)
        self._in_flight -= 1
        while self._at_gateway and self._in_flight < self.limit.value:
            self._at_gateway -= 1
            self._send()


def limit_of(*, adaptive: bool = True) -> AdaptiveLimit:
    return AdaptiveLimit(least=LEAST, most=MOST, tolerance=2.0, adaptive=adaptive)


@pytest.mark.parametrize("stream", [True, False])
def test_overload_brings_the_limit_near_what_the_server_can_do_at_no_cost_in_throughput(stream: bool) -> None:
    served = {}
    for adaptive in (True, False):
        server = Server(limit_of(adaptive=adaptive), stream=stream)
        server.run(clients=8, seconds=30)
        server.run(clients=200, seconds=60)
        server.run(clients=200, seconds=60)
        served[adaptive] = server.served
        if adaptive:
            assert LEAST <= server.limit.value <= 4 * PLACES
            assert sorted(server.ttft_s)[len(server.ttft_s) // 2] < 3.0
        else:
            assert sorted(server.ttft_s)[len(server.ttft_s) // 2] > 5.0
    assert served[True] >= 0.9 * served[False]


def test_limit_recovers_when_the_overload_is_over() -> None:
    limit = limit_of()
    server = Server(limit)
    server.run(clients=8, seconds=30)
    server.run(clients=200, seconds=60)
    fallen = limit.value
    server.run(clients=PLACES, seconds=120)
    assert fallen < 4 * PLACES
    assert limit.value >= PLACES


def test_long_prompts_alone_do_not_lower_the_limit() -> None:
    limit = limit_of()
    server = Server(limit)
    server.run(clients=12, seconds=60)
    server.prompt_bytes = lambda: server.chance.choice((1000, 20_000, 60_000))
    for _ in range(10):
        server.run(clients=12, seconds=20)
        assert limit.value == MOST


@pytest.mark.parametrize("stream", [True, False])
def test_long_answers_alone_do_not_lower_the_limit(stream: bool) -> None:
    limit = limit_of()
    server = Server(limit, stream=stream)
    server.run(clients=12, seconds=60)
    server.output_tokens = lambda: server.chance.choice((5, 100, 1500))
    for _ in range(5):
        server.run(clients=12, seconds=60)
        assert limit.value == MOST


@pytest.mark.parametrize(("crowd_s", "lowers"), [(0.15, False), (0.6, True)])
def test_crowd_lowers_the_limit_only_where_first_tokens_take_long(crowd_s: float, lowers: bool) -> None:
    """First tokens usually take 5 ms; whenever a crowd comes, thirty times as long or more."""
    limit = limit_of()
    now_s = 0.0
    for second in range(60):
        ttft_s = 0.005 if second < 30 else crowd_s
        for _ in range(20):
            now_s += 0.05
            limit.record(Sample(1000, ttft_s, 1.0, 50), in_flight=200, now_s=now_s)
    assert (limit.value < 200) == lowers


@given(
    samples=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.integers(1, MOST), st.booleans()), max_size=200),
    least=st.integers(1, 2 * MOST),
)
@settings(deadline=None, max_examples=60)
def test_limit_stays_within_its_bounds(samples: list[tuple[float, float, int, bool]], least: int) -> None:
    limit, now_s = AdaptiveLimit(least=least, most=MOST, tolerance=2.0), 0.0
    for ttft_s, seconds, in_flight, refused in samples:
        now_s += seconds
        if refused:
            limit.drop(in_flight=in_flight)
        limit.record(Sample(100, ttft_s, ttft_s + 1.0, 10), in_flight=in_flight, now_s=now_s)
        assert min(least, MOST) <= limit.value <= MOST


def test_a_refusal_of_the_server_counts_once_in_a_window_which_then_raises_nothing() -> None:
    limit = AdaptiveLimit(least=1, most=100, tolerance=2.0)

    def window(start_s: float) -> int:
        for number in range(WINDOW_SAMPLES + 1):
            now_s = start_s + number * WINDOW_S / 5
            limit.record(Sample(10, 0.1, 1.0, 10), in_flight=50, now_s=now_s)
        return limit.value

    for _ in range(2):
        limit.drop(in_flight=50)
        assert limit.value == 45
    assert window(0.0) == 45
    assert window(10.0) > 45
