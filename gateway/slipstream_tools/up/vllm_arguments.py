"""Arguments that a user adds to the command line of a vLLM server that `slipstream up` starts."""

from __future__ import annotations

import argparse

# vLLM itself takes any beginning of a name that is clear, underscores for dashes, and `--name.key` for a field of JSON.
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
    """`text` itself.

    Raises:
        argparse.ArgumentTypeError: the argument is one that follows from the manifest, or from where the server runs.
    """
    if not text.startswith("-"):
        return text
    name = text.partition("=")[0].partition(".")[0].replace("_", "-")
    if name in _SHORT or (len(name) > 2 and any(own.startswith(name) for own in _OWN)):
        raise argparse.ArgumentTypeError(f"{name} is set by 'slipstream up'; got {text!r}")
    return text
