"""Parity: the comparison of speculative answers with plain ones."""
