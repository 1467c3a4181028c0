"""Parity: speculative answers compared with plain ones."""
