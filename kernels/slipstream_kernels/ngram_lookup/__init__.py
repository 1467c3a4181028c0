"""Prompt look-up on the device: drafts copied from where a request's last tokens stood before."""

from slipstream_kernels.ngram_lookup.lookup import ngram_lookup
from slipstream_kernels.ngram_lookup.types import PADDING, NgramDrafts, NgramWorkspace

__all__ = ["PADDING", "NgramDrafts", "NgramWorkspace", "ngram_lookup"]
