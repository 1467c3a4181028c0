"""Checks of a draft before it serves."""
