"""The decision: pure functions from a request, its profile, its forecast and its route to an arm."""

from slipstream_gateway.decide.route.break_even import BreakEven, break_even, saving_se_s
from slipstream_gateway.decide.route.case import DecisionInputs, Health
from slipstream_gateway.decide.route.decide import decide
from slipstream_gateway.decide.route.draws import NO_DRAWS, RequestDraws
from slipstream_gateway.decide.route.explain import explanation

__all__ = [
    "NO_DRAWS",
    "BreakEven",
    "DecisionInputs",
    "Health",
    "RequestDraws",
    "break_even",
    "decide",
    "explanation",
    "saving_se_s",
]
