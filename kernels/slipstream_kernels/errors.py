"""Errors of this package beside `ValueError`, which bad input raises."""

from __future__ import annotations


class KernelUnavailable(RuntimeError):
    """The kernel was asked for and cannot run here: the message says what is missing and how to get it."""
