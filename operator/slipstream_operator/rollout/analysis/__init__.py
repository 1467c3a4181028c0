"""Statistics of live traffic: guards, confidence sequences and windows, in one ledger per policy, and in one per new
revision of a pair. Pure."""

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
from slipstream_operator.rollout.analysis.revisions import FEWEST_REPLAYS, RevisionFacts, RevisionLedger

__all__ = [
    "FEWEST_REPLAYS",
    "CheckpointError",
    "ClassFacts",
    "ClassMemory",
    "ErrorFacts",
    "GainFacts",
    "GuardFacts",
    "LossFacts",
    "Metric",
    "PolicyLedger",
    "RevisionFacts",
    "RevisionLedger",
    "Verdict",
]
