"""`slipstream drafts`: what gateways have captured for training drafts: list it, describe it, export it, delete it."""

from slipstream_tools.drafts.command import add_arguments, run

__all__ = ["add_arguments", "run"]
