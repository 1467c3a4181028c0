"""`slipstream kill` and `slipstream unkill`."""

from slipstream_tools.kill.command import add_arguments, run

__all__ = ["add_arguments", "run"]
