"""`slipstream unkill`: removes the kill switch of a pair or a policy in a cluster; exit codes as for `command`."""

from __future__ import annotations

import argparse
import asyncio

from slipstream_tools.kill.command import switch
from slipstream_tools.kill.gateways import turn_at_gateways


def run(args: argparse.Namespace) -> int:
    if args.gateway:
        return turn_at_gateways(args, on=False)
    return asyncio.run(switch(args, on=False))
