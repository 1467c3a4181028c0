"""`slipstream up`: starts Triton, the gateway and a demo with one command, on a laptop or a single server."""

from slipstream_tools.up.command import run
from slipstream_tools.up.options import add_arguments

__all__ = ["add_arguments", "run"]
