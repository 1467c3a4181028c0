"""Types of command-line options; argparse puts the option's name before what they raise."""

from __future__ import annotations

import argparse

_MAX_PORT = 65535
_MAX_DIGITS = 18  # Python reads no number of thousands of digits


def not_negative(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def at_least_one(text: str) -> int:
    value = not_negative(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def port(text: str) -> int:
    if (value := port_or_any(text)) == 0:
        raise argparse.ArgumentTypeError(f"a port is 1 to {_MAX_PORT}, got {text}")
    return value


def port_or_any(text: str) -> int:
    """A port to listen on; 0 for a free one."""
    value = not_negative(text)
    if value > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected 0 to {_MAX_PORT}, got {text}")
    return value


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:  # false for NaN too
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # false for NaN too
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def above_one(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < 1e6:  # false for NaN too
        raise argparse.ArgumentTypeError(f"expected a number above 1, got {text!r}")
    return value
