"""Errors of this package. Invalid arguments raise `ValueError`."""

from __future__ import annotations


class KernelUnavailable(RuntimeError):
    """The kernel was requested and cannot run; the message names the missing part and how to get it."""
