"""The health of one arm of one replica: a circuit breaker, modelled on Envoy's outlier detection.

Closed, it passes requests. It opens (the arm is *ejected*) at once when several attempts in a row fail. The pool's
sweep also opens it when too large a share of its attempts failed, or when its first tokens come far later than those of
the other replicas. After an ejection time, which doubles with every ejection in quick succession, it is half open: one
request at a time probes; a success closes the circuit, a failure opens it again.

A server may fail or be late because of the request. So such failures of one API key alone do not count while
the server completes other keys' requests.

https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from statistics import median

from slipstream_core.settings import HealthSettings

_BUCKETS = 10
_KEPT = 64
_LATENCY_WINDOWS = 3.0
# A server may have broken since another key's request completed: for this long, one key's failures are not counted.
_JUST_S = 5.0


class ErrorWindow:
    """Successful and failed attempts over the last `window_s`, in tenths of it."""

    __slots__ = ("_at", "_bucket_s", "_buckets", "bad", "good")

    def __init__(self, window_s: float) -> None:
        self.good = 0
        self.bad = 0
        self._bucket_s = window_s / _BUCKETS
        self._buckets = [[0, 0] for _ in range(_BUCKETS)]
        self._at = 0

    def add(self, now_s: float, *, ok: bool) -> None:
        self.forget(now_s)
        bucket = self._buckets[self._at % _BUCKETS]
        if ok:
            self.good += 1
            bucket[0] += 1
        else:
            self.bad += 1
            bucket[1] += 1

    def forget(self, now_s: float) -> None:
        """Drops entries older than the window."""
        at = int(now_s / self._bucket_s)
        for passed in range(max(self._at + 1, at - _BUCKETS + 1), at + 1):
            bucket = self._buckets[passed % _BUCKETS]
            self.good -= bucket[0]
            self.bad -= bucket[1]
            bucket[0] = bucket[1] = 0
        self._at = max(self._at, at)

    def clear(self) -> None:
        self.good = self.bad = 0
        for bucket in self._buckets:
            bucket[0] = bucket[1] = 0


class Keys:
    """The two API keys whose attempts completed last, and the two whose attempts failed last: one of two is another
    key."""

    __slots__ = ("_completed", "_failed", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._completed: dict[str, float] = {}
        self._failed: dict[str, float] = {}

    def completed(self, now_s: float, key: str) -> None:
        _note(self._completed, now_s, key)

    def failed(self, now_s: float, key: str) -> bool:
        """Notes a failure. Returns whether the key's requests may be its cause: other keys' have just completed, and
        none of theirs has failed."""
        _note(self._failed, now_s, key)
        if not _has_other(self._completed, now_s - _JUST_S, key):
            return False
        return not _has_other(self._failed, now_s - self._window_s, key)


def _has_other(seen: dict[str, float], since_s: float, key: str) -> bool:
    return any(other != key and time_s >= since_s for other, time_s in seen.items())


def _note(seen: dict[str, float], now_s: float, key: str) -> None:
    """Stores the time of `key` as the latest one, beside that of one other key."""
    seen.pop(key, None)
    seen[key] = now_s
    if len(seen) > 2:
        del seen[next(iter(seen))]


class Latencies:
    """The last few times to the first token; their median is robust against single long prompts."""

    __slots__ = ("_keep_s", "_kept")

    def __init__(self, window_s: float) -> None:
        self._keep_s = _LATENCY_WINDOWS * window_s
        self._kept: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, now_s: float, ttft_s: float) -> None:
        self._kept.append((now_s, ttft_s))

    def clear(self) -> None:
        self._kept.clear()

    def median_s(self, now_s: float, *, at_least: int) -> float | None:
        """None if fewer than `at_least` samples are recent enough."""
        recent = [ttft_s for time_s, ttft_s in self._kept if now_s - time_s <= self._keep_s]
        return median(recent) if len(recent) >= at_least else None


# Causes that no request alone has. A timeout may be that of a long prompt.
_OF_SERVERS = frozenset({"upstream_unavailable", "stalled"})
# Separate thresholds: a server that hangs or is unreachable, and one that responds with failures.
_UNREACHABLE = frozenset({"upstream_unavailable", "upstream_timeout", "stalled"})
_REFUSED = "overloaded"
_MOST_DRAG = 64.0
_MOST_DOUBLINGS = 10


class Circuit(StrEnum):
    """The state of a breaker; half open: the ejection time is over, and a probe decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Ejection(StrEnum):
    """The reason of an ejection."""

    UNREACHABLE = "unreachable"
    FAILURES = "failures"
    ERROR_RATE = "error_rate"
    LATENCY = "latency"


class Breaker:
    """`drag` multiplies the arm's load in the search for the least busy replica: 1, and more while attempts fail.

    A server that fails instantly has nothing in flight and would attract every request: with a share s of successful
    attempts, its load counts 1/s² times.
    """

    __slots__ = (
        "_closed_s",
        "_errors",
        "_failed",
        "_growth",
        "_keys",
        "_latencies",
        "_settings",
        "_unreachable",
        "_until_s",
        "cause",
        "drag",
        "ejections",
        "is_open",
        "probing",
    )

    def __init__(self, settings: HealthSettings) -> None:
        self.is_open = False
        self.probing = False
        self.drag = 1.0
        self.cause: Ejection | None = None
        self.ejections: dict[Ejection, int] = dict.fromkeys(Ejection, 0)
        self._settings = settings
        self._errors = ErrorWindow(settings.window_s)
        self._keys = Keys(settings.window_s)
        self._latencies = Latencies(settings.window_s)
        self._unreachable = 0
        self._failed = 0
        self._growth = 0
        self._until_s = 0.0
        self._closed_s = 0.0

    def circuit(self, now_s: float) -> Circuit:
        if not self.is_open:
            return Circuit.CLOSED
        return Circuit.HALF_OPEN if now_s >= self._until_s else Circuit.OPEN

    def usable(self, now_s: float) -> bool:
        """Whether a request may use the replica: the circuit is closed, or half open without a running probe."""
        return not self.is_open or (now_s >= self._until_s and not self.probing)

    def retry_after_s(self, now_s: float) -> float:
        """The time until the next attempt; 0 if it is permitted now."""
        return max(self._until_s - now_s, 0.0) if self.is_open else 0.0

    def answered(self, now_s: float, ttft_s: float | None) -> None:
        """The first piece of an answer arrived: the server is up, and is rated as fast if that was in question."""
        self._unreachable = 0
        if ttft_s is not None:
            self._latencies.add(now_s, ttft_s)
        if self.cause in (Ejection.UNREACHABLE, Ejection.LATENCY) and self._is_probe(now_s):
            self._close(now_s)

    def completed(self, now_s: float, key: str = "") -> None:
        """An answer to a request of an API key ended regularly."""
        self._keys.completed(now_s, key)
        self._failed = 0
        self._errors.add(now_s, ok=True)
        if self.is_open:
            if self._is_probe(now_s):
                self._close(now_s)
        elif self.drag > 1.0:
            self._weigh()

    def failed(self, now_s: float, cause: str, key: str = "") -> None:
        """An attempt for an API key failed, before its first byte or after it. `cause`: an error's `error_type`, or
        `stalled`."""
        if cause not in _OF_SERVERS and self._keys.failed(now_s, key):
            return
        self._errors.add(now_s, ok=False)
        self._weigh()
        if cause == _REFUSED:
            return  # the server works but is overloaded: others are preferred, and it is not ejected
        if self.cause is not None:
            if self._is_probe(now_s):
                self._open(now_s, self.cause)
            return
        if cause in _UNREACHABLE:
            self._unreachable += 1
            if self._unreachable >= self._settings.unreachable_in_a_row:
                self._open(now_s, Ejection.UNREACHABLE)
            return
        self._failed += 1
        if self._failed >= self._settings.failed_in_a_row:
            self._open(now_s, Ejection.FAILURES)

    def fails_too_often(self, now_s: float) -> bool:
        """Whether the share of failed attempts is above the limit, given enough attempts."""
        self._errors.forget(now_s)
        self._weigh()
        bad, total = self._errors.bad, self._errors.good + self._errors.bad
        return total >= self._settings.min_requests and bad >= self._settings.max_error_share * total

    def first_token_s(self, now_s: float) -> float | None:
        """The median time to the first token; None with too few samples."""
        return self._latencies.median_s(now_s, at_least=self._settings.min_latencies)

    def eject(self, now_s: float, cause: Ejection) -> None:
        """Ejects the replica on behalf of the pool's sweep."""
        if not self.is_open:
            self._open(now_s, cause)

    def _is_probe(self, now_s: float) -> bool:
        """Whether the end of a request reflects the server's present state. A request from before the ejection does
        not, however late or badly it ends."""
        return self.probing or now_s >= self._until_s

    def _open(self, now_s: float, cause: Ejection) -> None:
        settings = self._settings
        if not self.is_open:  # a long healthy period cancels earlier ejections
            self._growth = max(self._growth - int((now_s - self._closed_s) / settings.window_s), 0)
        wait_s = settings.first_ejection_s * 2 ** min(self._growth, _MOST_DOUBLINGS)
        self._growth += 1
        self._until_s = now_s + min(wait_s, settings.longest_ejection_s)
        self.is_open, self.cause, self.drag = True, cause, 1.0
        self.ejections[cause] += 1
        self._errors.clear()
        self._latencies.clear()

    def _close(self, now_s: float) -> None:
        self.is_open, self.cause = False, None
        self._closed_s = now_s
        self._unreachable = self._failed = 0

    def _weigh(self) -> None:
        good, bad = self._errors.good, self._errors.bad
        self.drag = min(((good + bad + 1) / (good + 1)) ** 2, _MOST_DRAG) if bad else 1.0
