"""A user's additional arguments for the command line of vLLM servers that `slipstream up` starts."""

from __future__ import annotations

import argparse

from slipstream_core.manifest.vllm_command import set_by_slipstream


def check_argument(text: str) -> str:
    """Returns `text`.

    Raises:
        argparse.ArgumentTypeError: the manifest, or `slipstream up` itself, determines the argument.
    """
    if set_by_slipstream(text):
        raise argparse.ArgumentTypeError(f"{text.partition('=')[0]} is set by 'slipstream up'; got {text!r}")
    return text
