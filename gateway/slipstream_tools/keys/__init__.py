"""`slipstream keys`: creates, lists, shows, revokes and rotates API keys."""

from slipstream_tools.keys.command import add_arguments, run

__all__ = ["add_arguments", "run"]
