"""Learning from a deployment's own traffic: what a request will look like, and whether speculation pays."""

from slipstream_gateway.decide.estimate.evidence import ClassEvidence, TreatmentEffect, ArmComparisons
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery
from slipstream_gateway.decide.estimate.learner import Learner

__all__ = ["ClassEvidence", "TreatmentEffect", "ArmComparisons", "ForecastQuery", "Learner"]
