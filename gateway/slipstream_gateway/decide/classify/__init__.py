"""What to expect of a request before it runs: its task, its length, its rare tokens."""

from slipstream_gateway.decide.classify.linear import LinearClassifier
from slipstream_gateway.decide.classify.model import Model, default_model, load_model, save_model

__all__ = ["LinearClassifier", "Model", "default_model", "load_model", "save_model"]
