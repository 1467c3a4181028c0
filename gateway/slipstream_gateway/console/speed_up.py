"""The live experiment over all classes of a pair as one figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slipstream_gateway.decide.estimate.evidence import TreatmentEffect, treatment_effect
from slipstream_gateway.decide.estimate.moments import ArmSamples, Comparison, Sample

Measure = Callable[[ArmSamples], Sample]


def overall(comparisons: Sequence[Comparison], measure: Measure) -> TreatmentEffect:
    """Both arms, with the control reweighted to the class shares of the speculative arm (direct standardisation): the
    mean effect on speculative requests. Classes without enough answers in an arm are left out."""
    speculative, control = Sample(), Sample()
    strata = [(measure(found.speculative), measure(found.control)) for found in comparisons]
    strata = [(one, other) for one, other in strata if one.n >= 2.0 and other.n >= 2.0]
    total = sum(one.n for one, _ in strata)
    if not strata:
        return treatment_effect(speculative, control)
    shares = [one.n / total for one, _ in strata]
    return treatment_effect(
        _standardised([one for one, _ in strata], shares), _standardised([other for _, other in strata], shares)
    )


def _standardised(samples: Sequence[Sample], shares: Sequence[float]) -> Sample:
    """A sample with the weighted mean, that mean's variance, and a size that matches its degrees of freedom
    (Satterthwaite 1946)."""
    mean = math.fsum(share * sample.mean for sample, share in zip(samples, shares, strict=True))
    parts = [share * share * sample.variance_of_mean for sample, share in zip(samples, shares, strict=True)]
    variance = math.fsum(parts)
    spread = math.fsum(part * part / (sample.n - 1.0) for part, sample in zip(parts, samples, strict=True))
    n = variance * variance / spread + 1.0 if spread > 0.0 else math.fsum(sample.n for sample in samples)
    return Sample(n=n, mean=mean, squares=variance * n * (n - 1.0))
