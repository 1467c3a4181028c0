"""The decision: pure functions from a request, its profile, its forecast and its route to an arm."""

from slipstream_gateway.decide.route.case import DecisionInputs, Health
from slipstream_gateway.decide.route.decide import decide
from slipstream_gateway.decide.route.draws import NO_DRAWS, fresh_draws, opts_out
from slipstream_gateway.decide.route.explain import explanation
from slipstream_gateway.decide.route.predicted_saving import PredictedSaving, predict_saving, saving_se_s

__all__ = [
    "NO_DRAWS",
    "DecisionInputs",
    "Health",
    "PredictedSaving",
    "decide",
    "explanation",
    "fresh_draws",
    "opts_out",
    "predict_saving",
    "saving_se_s",
]
