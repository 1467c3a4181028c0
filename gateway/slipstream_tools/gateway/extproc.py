"""`slipstream extproc`: the gateway as an external processor of Envoy, beside its HTTP endpoints."""

from __future__ import annotations

import argparse

from slipstream_tools.gateway import options

DEFAULT_ADDRESS = "127.0.0.1:9002"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.set_defaults(ext_proc=DEFAULT_ADDRESS)
