"""Learning from a deployment's own traffic: forecasts of requests, and the measured effect of speculation."""

from slipstream_gateway.decide.estimate.evidence import ArmComparisons, ClassEvidence, ServerTimeSaved, TreatmentEffect
from slipstream_gateway.decide.estimate.forecasts import ForecastQuery
from slipstream_gateway.decide.estimate.learner import Learner
from slipstream_gateway.decide.estimate.subjects import subject_of

__all__ = [
    "ArmComparisons",
    "ClassEvidence",
    "ForecastQuery",
    "Learner",
    "ServerTimeSaved",
    "TreatmentEffect",
    "subject_of",
]
