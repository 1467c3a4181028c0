"""A user's additional arguments for the command line of vLLM servers that `slipstream up` starts."""

from __future__ import annotations

import argparse

# vLLM itself accepts any unambiguous prefix of a name, underscores for dashes, and `--name.key` for a field of JSON.
_OWN = (
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--uds",
    "--scheduler-cls",
    "--speculative-config",
    "--config",
    "--api-key",
)
_SHORT = ("-sc",)


def check_argument(text: str) -> str:
    """Returns `text`.

    Raises:
        argparse.ArgumentTypeError: the manifest, or `slipstream up` itself, determines the argument.
    """
    if not text.startswith("-"):
        return text
    name = text.partition("=")[0].partition(".")[0].replace("_", "-")
    if name in _SHORT or (len(name) > 2 and any(own.startswith(name) for own in _OWN)):
        raise argparse.ArgumentTypeError(f"{name} is set by 'slipstream up'; got {text!r}")
    return text
