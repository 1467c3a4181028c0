"""Sharing of outcomes between replicas: in memory (nothing is shared) or through Redis."""
