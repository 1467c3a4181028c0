"""Learning from a deployment's own traffic: forecasts of requests, and the measured effect of speculation."""

from slipstream_gateway.decide.estimate.evidence import ArmComparisons, ClassEvidence, TreatmentEffect
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery
from slipstream_gateway.decide.estimate.learner import Learner

__all__ = ["ArmComparisons", "ClassEvidence", "ForecastQuery", "Learner", "TreatmentEffect"]
