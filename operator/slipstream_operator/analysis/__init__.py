"""Statistics of live traffic, pure: guards, confidence sequences, windows, and a ledger of them per policy."""

from slipstream_operator.analysis.checkpoint import CheckpointError
from slipstream_operator.analysis.facts import (
    ClassFacts,
    ClassMemory,
    ErrorFacts,
    GainFacts,
    GuardFacts,
    LossFacts,
    Verdict,
)
from slipstream_operator.analysis.ledger import PolicyLedger
from slipstream_operator.analysis.metrics import Metric

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
