"""`slipstream kill` and `slipstream unkill`."""

from slipstream_gateway.kill_command.command import add_arguments, run

__all__ = ["add_arguments", "run"]
