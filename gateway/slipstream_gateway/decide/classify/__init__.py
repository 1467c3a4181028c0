"""Predictions from a request's text alone: its task, the length of its answer, its share of rare tokens."""

from slipstream_gateway.decide.classify.linear import LinearClassifier
from slipstream_gateway.decide.classify.model import Model, default_model, load_model, save_model

__all__ = ["LinearClassifier", "Model", "default_model", "load_model", "save_model"]
