"""Statistics of live traffic, pure: guards, confidence sequences, windows, and a ledger of them per policy."""

from slipstream_operator.rollout.analysis.checkpoint import CheckpointError
from slipstream_operator.rollout.analysis.facts import (
    ClassFacts,
    ClassMemory,
    ErrorFacts,
    GainFacts,
    GuardFacts,
    LossFacts,
    Verdict,
)
from slipstream_operator.rollout.analysis.ledger import PolicyLedger
from slipstream_operator.rollout.analysis.metrics import Metric

__all__ = [
    "CheckpointError",
    "ClassFacts",
    "ClassMemory",
    "ErrorFacts",
    "GainFacts",
    "GuardFacts",
    "LossFacts",
    "Metric",
    "PolicyLedger",
    "Verdict",
]
