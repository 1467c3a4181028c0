"""The console's kill switch in a cluster: one patch of the pair, by the gateway's own account, where that may do it."""

from __future__ import annotations

import time

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import FORBIDDEN, KubeError
from slipstream_core.manifest.kill_switch import (
    LAND_WITHIN_S,
    KillEvent,
    Kills,
    NotSwitchable,
    command_for,
    now,
    with_event,
)
from slipstream_core.manifest.table import Route
from slipstream_core.settings import ClusterSettings

from slipstream_gateway.sources.cluster.confirmations import Reports
from slipstream_gateway.sources.cluster.switch import Flipped, Target, flip

_LOOK_AGAIN_S = 0.5  # silence is the only sign of a gateway that is gone


class ClusterKillSwitch:
    """Turns `spec.killSwitch` of pairs, as `slipstream kill` does, and waits for the gateways that report in the same
    namespace. `kills` has the events of this process alone: the objects have the present state."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings = settings
        self.kills = Kills()

    def is_on(self, route: Route) -> bool:
        return bool(route.pair.spec.kill_switch)

    def command(self, route: Route) -> str:
        """Only for a pair that a policy stops: policies are not turned from here."""
        policy = route.policy
        by_policy = policy is not None and policy.spec.kill_switch and not route.pair.spec.kill_switch
        return command_for(route) if by_policy else ""

    async def turn(self, pair: str, *, on: bool, by: str, reason: str) -> KillEvent:
        namespace, _, name = pair.rpartition("/")
        target = Target(kind="ModelPair", name=name, namespace=namespace)
        event = KillEvent(at=now(), pair=pair, on=on, by=by, reason=reason)
        settings = self._settings
        try:
            async with KubeClient(settings.kubeconfig, name="slipstream-gateway") as client:
                reports = Reports(client, target, namespace=settings.report_namespace)
                async with reports.following():
                    flipped = await flip(client, target, on=on)
                    event = await _landed(reports, flipped, event)
        except CommandError as exc:
            raise NotSwitchable(_said_of(exc, target, on=on)) from exc
        self.kills = with_event(self.kills, event)
        return event


async def _landed(reports: Reports, flipped: Flipped, event: KillEvent) -> KillEvent:
    """`event` with the time from the acknowledged patch to the last confirmation, or with the missing gateways."""
    until_s = flipped.at_s + LAND_WITHIN_S
    while not (reports.is_settled(flipped) or reports.refused):
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            break
        await reports.wait(min(left_s, _LOOK_AGAIN_S))
    applied, late = reports.applied(flipped), _late(reports, flipped)
    is_landed = bool(applied) and not late
    landed_s = max(one.after_s for one in applied) if is_landed else None
    notes = [f"the operator refuses the pair: {flipped.refusal}"] if event.on and flipped.refusal else []
    return msgspec.structs.replace(event, landed_s=landed_s, workers=len(applied), note="; ".join([*notes, *late]))


def _late(reports: Reports, flipped: Flipped) -> list[str]:
    """Messages about the gateways that have not confirmed the patch."""
    if not reports.listed:
        why = reports.error or "the API server does not answer"
        return [f"whether gateways apply it is not known: {why}"]
    missing = [f"{name} has not confirmed" for name in reports.missing(flipped)]
    silent = [f"{one.gateway} has been silent for {one.silent_s:.0f} s" for one in reports.silent(flipped)]
    return missing + silent


def _said_of(error: CommandError, target: Target, *, on: bool) -> str:
    run = f"Run: slipstream {'kill' if on else 'unkill'} modelpair/{target.name} -n {target.namespace}"
    if isinstance(error.__cause__, KubeError) and error.__cause__.status == FORBIDDEN:
        return f"The API server does not let this gateway change {target}: {error.__cause__}. {run}"
    return f"{str(error)[0].upper()}{str(error)[1:]}. {run}"
