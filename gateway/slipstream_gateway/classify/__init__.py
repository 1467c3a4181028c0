"""What to expect of a request before it runs: its task, its length, its rare tokens."""

from slipstream_gateway.classify.rules import RuleClassifier

__all__ = ["RuleClassifier"]
