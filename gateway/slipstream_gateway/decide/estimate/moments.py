"""Running means and variances of the comparison's arms, in a form that can be merged."""

from __future__ import annotations

import msgspec
from slipstream_core.observation import Observation, cost_of


class Sample(msgspec.Struct):
    """Count, mean and sum of squares of one measure in one arm (Welford 1962)."""

    n: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.n += 1.0
        delta = value - self.mean
        self.mean += delta / self.n
        self.squares += delta * (value - self.mean)

    def join(self, other: Sample) -> None:
        """Merges `other`, as if each of its values had been added (Chan, Golub and LeVeque 1979)."""
        total = self.n + other.n
        if total > 0.0:
            delta = other.mean - self.mean
            self.squares += other.squares + delta * delta * self.n * other.n / total
            self.mean += delta * other.n / total
            self.n = total

    def halve(self) -> None:
        self.n *= 0.5
        self.squares *= 0.5

    @property
    def variance_of_mean(self) -> float:
        return self.squares / (self.n - 1.0) / self.n


class ArmSamples(msgspec.Struct):
    """One arm's measures: seconds, and a price. `server_s` is the servers' time that an answer is priced for."""

    ttft_s: Sample = msgspec.field(default_factory=Sample)
    tpot_s: Sample = msgspec.field(default_factory=Sample)
    e2e_s: Sample = msgspec.field(default_factory=Sample)
    cost: Sample = msgspec.field(default_factory=Sample)
    server_s: Sample = msgspec.field(default_factory=Sample)

    def add(self, seen: Observation) -> None:
        self.e2e_s.add(seen.e2e_s)
        if seen.ttft_s is not None:
            self.ttft_s.add(seen.ttft_s)
            if seen.output_tokens > 1:
                self.tpot_s.add((seen.e2e_s - seen.ttft_s) / (seen.output_tokens - 1))
        if (cost := cost_of(seen)) is not None:
            self.cost.add(cost)
        if seen.priced_s is not None:
            self.server_s.add(seen.priced_s)

    def join(self, other: ArmSamples) -> None:
        self.ttft_s.join(other.ttft_s)
        self.tpot_s.join(other.tpot_s)
        self.e2e_s.join(other.e2e_s)
        self.cost.join(other.cost)
        self.server_s.join(other.server_s)

    def halve(self) -> None:
        for sample in (self.ttft_s, self.tpot_s, self.e2e_s, self.cost, self.server_s):
            sample.halve()


class Comparison(msgspec.Struct):
    """Both arms of a request class; counts are of answers since the start, with explorations separate."""

    speculative: ArmSamples = msgspec.field(default_factory=ArmSamples)
    control: ArmSamples = msgspec.field(default_factory=ArmSamples)
    speculatives: int = 0
    controls: int = 0
    explorations: int = 0

    def join(self, other: Comparison) -> None:
        """Merges the data of `other`."""
        self.speculative.join(other.speculative)
        self.control.join(other.control)
        self.speculatives += other.speculatives
        self.controls += other.controls
        self.explorations += other.explorations
