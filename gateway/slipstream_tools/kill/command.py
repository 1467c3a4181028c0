"""`slipstream kill` sets the kill switch of a pair or a policy in a cluster, `slipstream unkill` removes it. Both wait
until every gateway has applied the change.

Exit codes: 0 every gateway confirmed; 1 it could not be set, or a live gateway did not confirm in time (named); 2 usage
error, or an unusable kubeconfig; 3 it is set, and no gateway reports; 4 it is set, all live gateways confirmed, and
others have stopped reporting (named): they have ended without cleaning up, or are cut off from the API server and serve
by the old configuration.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from slipstream_core.errors import CommandError
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError
from slipstream_gateway.sources.cluster.confirmations import Applied, Reports, Silent
from slipstream_gateway.sources.cluster.switch import Flipped, Target, flip, other_kills

from slipstream_tools.kill.gateways import turn_at_gateways

NOT_CONFIRMED = 1
NO_GATEWAY = 3
SILENT_GATEWAY = 4
_LOOK_AGAIN_S = 1.0  # a gateway that has ended is detected by its silence alone


def run(args: argparse.Namespace) -> int:
    return turn_at_gateways(args, on=args.on) if args.gateway else asyncio.run(_switch(args, on=args.on))


async def _switch(args: argparse.Namespace, *, on: bool) -> int:
    """Set or remove the kill switch, print who goes by it and when, and return the exit code."""
    try:
        connected = await KubeClient.for_command(kubeconfig=args.kubeconfig, context=args.context)
    except CommandError as exc:
        hint = "--gateway URL names a gateway itself"
        raise CommandError(f"{exc}; {hint}", exit_code=exc.exit_code) from exc
    async with connected as client:
        target = Target.parse(args.object, namespace=args.namespace or client.namespace)
        reports = Reports(client, target, namespace=args.report_namespace)
        async with reports.following():
            flipped = await flip(client, target, on=on)  # first of all: it waits for no report
            print(f"{target}: kill switch {'set' if on else 'removed'} (generation {flipped.generation})", flush=True)
            if on and (refusal := flipped.refusal) is not None:
                print(
                    f"{target} is refused ({refusal}), so this kill does not stop a model that another object serves",
                    file=sys.stderr,
                )
            code = await _confirm(reports, flipped, args.timeout)
        if not on:
            await _print_other_kills(client, target, flipped)
    return code


async def _confirm(reports: Reports, flipped: Flipped, timeout_s: float) -> int:
    """Prints each gateway when it confirms, then the summary."""
    printed: set[str] = set()
    until_s = flipped.at_s + timeout_s
    while True:
        applied = reports.applied(flipped)
        for one in applied:
            if one.gateway not in printed:
                print(f"  {one.gateway}  {one.after_s * 1e3:.0f} ms", flush=True)
        printed.update(one.gateway for one in applied)
        left_s = until_s - time.monotonic()
        if left_s <= 0 or reports.refused or reports.is_settled(flipped):
            return _summary(reports, flipped, applied, timeout_s)
        await reports.wait(min(left_s, _LOOK_AGAIN_S))


def _summary(reports: Reports, flipped: Flipped, applied: Sequence[Applied], timeout_s: float) -> int:
    """Prints the summary; returns the exit code."""
    if not reports.listed:
        why = reports.error or "the API server does not respond"
        raise CommandError(f"the change is made, but it is unknown whether gateways have applied it: {why}")
    missing, silent = reports.missing(flipped), reports.silent(flipped)
    total = len(applied) + len(missing) + len(silent)
    if reports.narrowed:
        print(
            f"only {reports.where} was searched for gateways, because listing reports of the whole cluster is not "
            "permitted (set --report-namespace to their namespace)",
            file=sys.stderr,
        )
    if missing:
        print(
            f"{len(applied)} of {total} gateways confirmed within {timeout_s:g} s; missing: {', '.join(missing)}",
            file=sys.stderr,
        )
    elif applied:
        slowest_ms = max(one.after_s for one in applied) * 1e3
        print(
            f"{len(applied)} of {total} gateways have applied it, {slowest_ms:.0f} ms after the API server accepted it"
        )
    elif not silent:
        print(
            f"no gateway confirms the change: {reports.where} has no report of a gateway that watches this namespace "
            "(set --report-namespace to the namespace of the reports)",
            file=sys.stderr,
        )
    for one in silent:
        print(_said_of(one), file=sys.stderr)
    if missing:
        return NOT_CONFIRMED
    if silent:
        return SILENT_GATEWAY
    return 0 if applied else NO_GATEWAY


def _said_of(silent: Silent) -> str:
    return (
        f"{silent.gateway} has not confirmed: last seen {silent.silent_s:.0f} s ago, it may still serve the old "
        f"configuration (if it no longer exists: kubectl delete lease {silent.gateway} --namespace {silent.namespace})"
    )


async def _print_other_kills(client: KubeClient, target: Target, flipped: Flipped) -> None:
    """An unkill that changes nothing must not look like one that did."""
    try:
        others = await other_kills(client, target, flipped.item)
    except KubeError as exc:
        print(f"whether another kill switch holds the pair could not be read: {exc}", file=sys.stderr)
        return
    for other in others:
        print(f"still killed by {other}")
