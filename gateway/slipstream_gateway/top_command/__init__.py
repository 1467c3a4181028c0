"""`slipstream top`: the console's main numbers in a terminal."""

from slipstream_gateway.top_command.command import add_arguments, run

__all__ = ["add_arguments", "run"]
