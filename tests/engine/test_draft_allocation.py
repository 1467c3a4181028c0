"""Which draft tokens get rows: against an exhaustive search, and as a closed loop over simulated servers."""

from __future__ import annotations

import itertools
import operator
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slipstream_engine.drafts.draft_allocation import Chances, DraftRows, StepCosts, allocate

PROBABILITY = st.floats(0.0, 1.0)
BATCHES = st.lists(st.lists(PROBABILITY, max_size=3), min_size=1, max_size=3)


@st.composite
def step_times(draw: st.DrawFn) -> list[float]:
    """Seconds of 0 to 12 rows, never falling."""
    increments = draw(st.lists(st.floats(0.0, 5.0), min_size=13, max_size=13))
    return list(itertools.accumulate(increments, initial=draw(st.floats(0.1, 10.0))))[:13]


def _rate(
    chances: Sequence[Sequence[float]],
    lengths: Sequence[int],
    step_s: Sequence[float],
    pass_s: float,
    copied: Sequence[bool],
) -> float:
    return sum(_tokens(chances, lengths)) / _step_s(lengths, step_s, pass_s, copied)


def _tokens(chances: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[float]:
    return [
        1.0 + sum(itertools.accumulate(of_request[:length], operator.mul))
        for of_request, length in zip(chances, lengths, strict=True)
    ]


def _step_s(lengths: Sequence[int], step_s: Sequence[float], pass_s: float, copied: Sequence[bool]) -> float:
    passes = max(0 if copy else length for length, copy in zip(lengths, copied, strict=True))
    return step_s[len(lengths) + sum(lengths)] + passes * pass_s


FLAGS = st.lists(st.booleans(), min_size=3, max_size=3)
CLASSES = st.lists(st.sampled_from(["a", "b", None]), min_size=3, max_size=3)


@given(BATCHES, step_times(), st.sampled_from([0.0, 0.01, 1.0]), FLAGS, FLAGS)
def test_no_other_allocation_has_more_tokens_per_second(
    chances: list[list[float]], step_s: list[float], pass_s: float, fixed: list[bool], copied: list[bool]
) -> None:
    fixed, copied = fixed[: len(chances)], copied[: len(chances)]
    shortest = [len(of_request) if whole else 0 for of_request, whole in zip(chances, fixed, strict=True)]
    best = max(
        _rate(chances, lengths, step_s, pass_s, copied)
        for lengths in itertools.product(
            *[range(least, len(of_request) + 1) for least, of_request in zip(shortest, chances, strict=True)]
        )
    )
    found = allocate(chances, step_s, [depth * pass_s for depth in range(9)] if pass_s else [], fixed, copied)
    for least, length, of_request in zip(shortest, found, chances, strict=True):
        assert least <= length <= len(of_request)
    assert _rate(chances, found, step_s, pass_s, copied) == pytest.approx(best, rel=1e-9)


@given(BATCHES, step_times(), st.sampled_from([0.0, 0.01, 1.0]), FLAGS, FLAGS, CLASSES)
def test_a_protected_class_has_its_tokens_as_soon_as_without_drafts(
    chances: list[list[float]],
    step_s: list[float],
    pass_s: float,
    fixed: list[bool],
    copied: list[bool],
    protected: list[str | None],
) -> None:
    fixed, copied = fixed[: len(chances)], copied[: len(chances)]
    classes = protected[: len(chances)]
    passes_s = [depth * pass_s for depth in range(9)] if pass_s else []
    found = allocate(chances, step_s, passes_s, fixed, copied, classes)
    least = [len(of_request) if whole else 0 for of_request, whole in zip(chances, fixed, strict=True)]
    growth = _step_s(found, step_s, pass_s, copied) / _step_s(least, step_s, pass_s, copied)
    tokens, before = _tokens(chances, found), _tokens(chances, least)
    for name in set(classes) - {None}:
        of_class = [request for request, own in enumerate(classes) if own == name]
        gain = sum(tokens[request] for request in of_class) / sum(before[request] for request in of_class)
        assert growth <= gain * 1.02 * (1 + 1e-9)
    rates = [_rate(chances, lengths, step_s, pass_s, copied) for lengths in (found, least)]
    assert rates[0] >= rates[1] * (1 - 1e-9)


@given(st.lists(st.lists(PROBABILITY, max_size=4), min_size=1, max_size=6))
def test_free_rows_are_all_used_and_dear_rows_not_at_all(chances: list[list[float]]) -> None:
    most = len(chances) + sum(map(len, chances))
    used = allocate(chances, [1.0] * (most + 1))
    reached = [list(itertools.accumulate(row, lambda a, b: a * b)) for row in chances]
    assert used == [sum(chance > 1e-12 for chance in row) for row in reached] or all(
        length >= sum(chance > 1e-12 for chance in row) for length, row in zip(used, reached, strict=True)
    )
    dear = [1.0 + 100.0 * max(rows - len(chances), 0) for rows in range(most + 1)]
    assert allocate(chances, dear) == [0] * len(chances)


def test_an_empty_batch_has_no_lengths() -> None:
    assert allocate([], [1.0]) == []
    assert allocate([[], []], [1.0, 1.0, 1.0]) == [0, 0]


def test_the_likelier_request_gets_the_row() -> None:
    one_more = [0.0, 1.0, 1.0, 1.0, 100.0]
    assert allocate([[0.4, 0.4], [0.9, 0.3]], one_more) == [0, 1]


def test_passes_of_a_draft_model_limit_the_depth_for_all() -> None:
    flat = [1.0] * 11
    assert allocate([[0.9] * 4, [0.9] * 4], flat) == [4, 4]
    assert allocate([[0.9] * 4, [0.9] * 4], flat, [0.0, 10.0, 20.0, 30.0, 40.0]) == [0, 0]
    shallow = allocate([[0.9] * 4, [0.2] * 4], flat, [0.0, 0.2, 0.4, 0.6, 0.8])
    assert shallow[0] >= shallow[1] >= 1  # the pass is paid once, for both


def test_drafts_beside_a_protected_request_make_no_step_longer() -> None:
    """Rows up to the eighth are free, as on hardware that waits for memory; later ones are dear."""
    rows = DraftRows()
    for count in range(1, 33):
        rows.note_step(2, count, 1.0 if count <= 8 else 1.0 + 0.03 * (count - 8), most=count)
    offers, own = [[], [1] * 12], [0.0, 0.0]
    assert rows.lengths(offers, own)[1] > 6
    assert rows.lengths(offers, own, protected=["label", None]) == [0, 6]
    assert rows.lengths(offers, own, protected=[None, "json"])[1] > 6  # it gains by them itself
    assert rows.lengths(offers[1:], own[1:], protected=[None, "label waits"]) == [7]


@given(st.lists(st.tuples(st.integers(1, 1500), st.floats(1e-4, 10.0)), min_size=1, max_size=60), st.integers(1, 1200))
def test_more_rows_never_cost_less(steps: list[tuple[int, float]], most: int) -> None:
    costs = StepCosts()
    for rows, seconds in steps:
        costs.update(1, rows, seconds)
    table = costs.table(1, most)
    assert len(table) == most + 1
    assert all(0.0 < before <= after * (1 + 1e-9) for before, after in itertools.pairwise(table))


def test_a_number_of_rows_that_is_avoided_is_tried_again_at_growing_distances() -> None:
    costs, waits = StepCosts(), []
    for _ in range(7):
        costs.update(1, 16, 5.0)
        waits.append(0)
        while costs.table(1, 16)[16] > 1.0:
            costs.update(1, 4, 0.04, most=16)
            waits[-1] += 1
    assert waits == [64, 128, 256, 512, 1024, 1024, 1024]


def test_the_last_row_of_a_step_is_not_free() -> None:
    costs = StepCosts()
    costs.update(1, 1, 0.030)
    costs.update(1, 7, 0.060)
    table = costs.table(1, 7)
    assert table[7] - table[6] == pytest.approx(0.005)


def test_the_rows_of_hundreds_of_requests_are_not_free() -> None:
    """256 requests, each with one and with seven draft tokens."""
    costs = StepCosts()
    costs.update(256, 512, 0.018)
    costs.update(256, 2048, 0.067)
    assert costs.table(256, 2048)[1024] == pytest.approx(0.034, rel=0.05)


def test_far_fewer_rows_than_were_measured_are_taken_for_cheap() -> None:
    """64 requests that started with eight draft tokens each: a plain step may take a third of that time."""
    costs = StepCosts()
    costs.update(64, 576, 0.021)
    assert costs.table(64, 576)[64] < 0.4 * 0.021


def test_a_number_of_rows_that_the_load_does_not_allow_is_not_forgotten() -> None:
    costs = StepCosts()
    costs.update(1, 64, 5.0)
    for _ in range(1000):
        costs.update(1, 4, 0.04, most=16)
    assert costs.table(1, 64)[64] > 1.0


def test_steps_of_more_requests_take_longer_than_their_rows() -> None:
    """12 ms for each request, such as the attention over its text, and 4 ms for each row."""
    costs, draws = StepCosts(), random.Random(4)
    for _ in range(600):
        requests = draws.choice((2, 4, 8))
        rows = requests * draws.choice((1, 2, 4))
        costs.update(requests, rows, (0.012 * requests + 0.004 * rows) * draws.uniform(0.95, 1.05))
    for requests, rows in ((2, 8), (4, 8), (8, 8), (8, 16), (4, 16)):
        assert costs.table(requests, rows)[rows] == pytest.approx(0.012 * requests + 0.004 * rows, rel=0.1)


def test_costs_before_any_step_are_equal() -> None:
    assert StepCosts().table(1, 3) == [1.0] * 4


@pytest.mark.parametrize(
    "curve", [lambda rows: 0.04, lambda rows: 0.01 * rows, lambda rows: 0.04 + 0.004 * max(rows - 8, 0)]
)
def test_costs_follow_the_server(curve: Callable[[int], float]) -> None:
    costs, draws = StepCosts(), random.Random(1)
    for _ in range(2000):
        rows = draws.randint(1, 64)
        costs.update(1, rows, curve(rows) * draws.uniform(0.8, 1.2))
    table = costs.table(1, 64)
    assert statistics.mean(abs(table[rows] / curve(rows) - 1.0) for rows in range(1, 65)) < 0.05


def test_one_slow_step_moves_a_cost_little() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.update(1, 8, 0.04)
    costs.update(1, 8, 60.0)
    assert costs.table(1, 8)[8] < 0.05


def test_chances_follow_evidence_and_request() -> None:
    chances, draws = Chances(), random.Random(2)
    own = {"copy": 0.0, "prose": 0.0}
    for _ in range(600):
        for request, likely in (("copy", 0.95), ("prose", 0.3)):
            hits = [draws.random() < likely for _ in range(3)]
            accepted = next((index for index, hit in enumerate(hits) if not hit), 3)
            own[request] = chances.learn([0, 1, 2], accepted, own[request])
    assert chances.of([0], own["copy"])[0] > 0.8
    assert chances.of([0], own["prose"])[0] < 0.6
    assert chances.of([0, 1, 2], 0.0) == [pytest.approx(chance, abs=0.45) for chance in (0.7, 0.7, 0.7)]


class _Server:
    """A simulated server: what a step costs, and which requests copy."""

    def __init__(self, seed: int, *, knee: int, request_s: float = 0.0) -> None:
        self.rows = DraftRows()
        self._draws = random.Random(seed)
        self._knee, self._request_s = knee, request_s
        self._own: dict[int, float] = {}

    def forget_requests(self) -> None:
        """The next step is for new requests."""
        self._own.clear()

    def step_s(self, rows: int, requests: int) -> float:
        return 0.040 + 0.0045 * max(rows - self._knee, 0) + self._request_s * requests

    def step(self, likely: Sequence[float], most: int = 5, fixed: int | None = None) -> tuple[int, float, int]:
        """One step of requests that accept with `likely`: (tokens, seconds, draft tokens)."""
        offers = [list(range(most))] * len(likely)
        lengths = (
            [fixed] * len(likely)
            if fixed is not None
            else self.rows.lengths(offers, [self._own.get(request, 0.0) for request in range(len(likely))])
        )
        tokens = 0
        for request, (chance, length) in enumerate(zip(likely, lengths, strict=True)):
            accepted = 0
            while accepted < length and self._draws.random() < chance:
                accepted += 1
            tokens += 1 + accepted
            if length:
                own = self._own.get(request, 0.0)
                self._own[request] = self.rows.chances.learn(offers[request][:length], accepted, own)
        rows = len(likely) + sum(lengths)
        seconds = self.step_s(rows, len(likely)) * self._draws.uniform(0.9, 1.1)
        self.rows.note_step(len(likely), rows, seconds, len(likely) * (1 + most))
        return tokens, seconds, sum(lengths)


def _rate_of(server: _Server, likely: Sequence[float], steps: int, fixed: int | None = None) -> float:
    found = [server.step(likely, fixed=fixed) for _ in range(steps)]
    return sum(tokens for tokens, _, _ in found) / sum(seconds for _, seconds, _ in found)


@pytest.mark.parametrize("request_s", [0.0, 0.010])
@pytest.mark.parametrize("load", [1, 4, 8, 16])
@pytest.mark.parametrize("kind", ["copies", "prose", "mixed"])
def test_at_least_as_many_tokens_per_second_as_the_best_fixed_length(load: int, kind: str, request_s: float) -> None:
    cycle = {"copies": [0.93], "prose": [0.25], "mixed": [0.95, 0.3, 0.6, 0.1]}[kind]
    likely = [cycle[index % len(cycle)] for index in range(load)]
    adaptive = _Server(3, knee=8, request_s=request_s)
    for load_before in (1, 2, 4, 8, 16):  # a server meets loads on its way
        _rate_of(adaptive, [cycle[index % len(cycle)] for index in range(load_before)], 40)
    best = max(_rate_of(_Server(4, knee=8, request_s=request_s), likely, 1500, fixed=fixed) for fixed in range(6))
    # Trying dear numbers of rows again takes up to 2 % of 1,500 steps.
    assert _rate_of(adaptive, likely, 1500) > 0.97 * best


def test_after_a_load_step_the_size_is_right_within_five_steps() -> None:
    server = _Server(5, knee=8)
    for load in (1, 16, 1, 16):  # has met both loads before
        _rate_of(server, [0.7] * load, 100)
    settled = {}
    for load in (1, 16):
        settled[load] = statistics.mean(server.step([0.7] * load)[2] for _ in range(60))
    for load in (16, 1, 16):
        after = [server.step([0.7] * load)[2] for _ in range(5)]
        assert abs(statistics.mean(after) - settled[load]) <= max(1.0, 0.1 * load)


def test_a_server_that_was_slow_at_first_is_tried_again() -> None:
    """Steps that take eight times as long, such as the first ones of a process, must not end drafting for good."""
    server, quick = _Server(6, knee=16), _Server(6, knee=16)
    step_s = server.step_s
    server.step_s = lambda rows, requests: step_s(rows, requests) * (8.0 if rows > 4 else 1.0)  # type: ignore[method-assign]
    _rate_of(server, [0.9] * 4, 60)
    server.step_s = step_s  # type: ignore[method-assign]
    _rate_of(server, [0.9] * 4, 400)
    _rate_of(quick, [0.9] * 4, 460)
    assert _rate_of(server, [0.9] * 4, 400) > 0.97 * _rate_of(quick, [0.9] * 4, 400)


def test_drafting_goes_on_after_texts_that_the_drafter_cannot_predict() -> None:
    """Each request is new, so that only what is known of all requests can keep the server from drafting."""
    server, quick = _Server(7, knee=1), _Server(7, knee=1)
    for _ in range(400):
        server.step([0.02], fixed=5)
        server.forget_requests()
    lengths = []
    for _ in range(150):
        lengths.append(server.step([0.9])[2])
        server.forget_requests()
    assert not any(lengths[:60])
    assert _rate_of(server, [0.9], 400) > 0.97 * _rate_of(quick, [0.9], 400)


def test_the_first_pass_of_a_draft_model_may_be_dearer_than_the_next_ones() -> None:
    """5 ms once, and 1 ms for each pass: one draft token seems to cost 6 ms, six draft tokens cost 11 ms."""
    rows = DraftRows()
    for _ in range(30):
        rows.note_step(1, 1, 0.020, 7)
        rows.note_drafting(1, 0.006, 6)
    [length] = rows.lengths([range(6)], [2.0])
    assert length == 6  # deeper drafts are tried
    rows.note_drafting(6, 0.011, 6)
    assert rows.lengths([range(6)], [2.0]) == [6]


def test_a_dear_draft_model_is_tried_again_when_it_is_cheap() -> None:
    rows = DraftRows()
    for _ in range(20):
        rows.note_step(4, 4, 0.040, 16)
        rows.note_step(4, 16, 0.041, 16)
        for passes in (1, 2, 3):
            rows.note_drafting(passes, passes * 1.0, 3)
    assert rows.lengths([range(3)] * 4, [2.0] * 4) == [0] * 4
    steps = 0
    while not any(rows.lengths([range(3)] * 4, [2.0] * 4)):
        rows.note_drafting(0, 0.0, 3)
        steps += 1
    assert steps < 100
