"""The options of `slipstream kill` and `slipstream unkill`."""

from __future__ import annotations

import argparse
from pathlib import Path

from slipstream_core.arguments import seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("object", metavar="KIND/NAME", help="modelpair/NAME (mp/) or speculationpolicy/NAME (sp/)")
    parser.add_argument(
        "-n", "--namespace", metavar="NS", help="its namespace (default: the kubeconfig's; with --gateway, none)"
    )
    parser.add_argument(
        "--gateway",
        action="append",
        metavar="URL",
        help="turn the switch at this gateway's admin port itself, without the API server, until its restart; repeat "
        "it for every gateway. An admin's API key comes from SLIPSTREAM_API_KEY",
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig of the cluster, as for kubectl")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="S", help="maximum wait for the gateways (%(default)s)"
    )
    parser.add_argument(
        "--report-namespace",
        metavar="NS",
        help="namespace of the gateways' reports (default: all namespaces, or the object's own if you may list only "
        "that one)",
    )
