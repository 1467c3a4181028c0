"""An operator that is killed, as by `kill -9`, right after its Nth write: `python -m tests.operator.crashing_operator N
[options of slipstream operator]`. With N = 0 it lives.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from slipstream_operator import command
from slipstream_operator.main import operate


def main() -> None:
    last = int(sys.argv[1])
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    settings = command.settings_of(parser.parse_args(sys.argv[2:]))
    written = 0

    def count(method: str, path: str) -> None:
        nonlocal written
        written += 1
        print(f"{written}: {method} {path}", flush=True)
        if written == last:
            os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        await operate(
            settings,
            stop=stop,
            heed_signals=lambda: loop.add_signal_handler(signal.SIGTERM, stop.set),
            on_write=count,
        )

    asyncio.run(run())


if __name__ == "__main__":
    main()
