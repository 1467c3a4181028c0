"""Prompt look-up on the device: drafts are copied from an earlier occurrence of the request's last tokens."""

from slipstream_kernels.ngram_lookup.lookup import ngram_lookup
from slipstream_kernels.ngram_lookup.types import PADDING, NgramDrafts, NgramWorkspace

__all__ = ["PADDING", "NgramDrafts", "NgramWorkspace", "ngram_lookup"]
