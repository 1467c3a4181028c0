"""`slipstream up`: Triton, the gateway and a demo in one command, for a laptop or a single server."""

from slipstream_gateway.up.command import run
from slipstream_gateway.up.options import add_arguments

__all__ = ["add_arguments", "run"]
