"""`slipstream top`: the console's main numbers in a terminal."""

from slipstream_tools.top.command import add_arguments, run

__all__ = ["add_arguments", "run"]
