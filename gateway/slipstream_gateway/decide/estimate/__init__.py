"""Learning from a deployment's own traffic: what a request will look like, and whether speculation pays."""

from slipstream_gateway.decide.estimate.evidence import ArmComparisons, ClassEvidence, TreatmentEffect
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery
from slipstream_gateway.decide.estimate.learner import Learner

__all__ = ["ArmComparisons", "ClassEvidence", "ForecastQuery", "Learner", "TreatmentEffect"]
