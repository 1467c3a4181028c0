"""Builds the console's services and its routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

from slipstream_core.manifest.kill_switch import KillEvent, KillSwitch
from slipstream_core.settings import GatewaySettings
from starlette.routing import BaseRoute, Route, request_response

from slipstream_gateway.access import KeyedAccess
from slipstream_gateway.api.access_control import AccessControl, require_admin
from slipstream_gateway.api.port_router import Checked, RequestCheck
from slipstream_gateway.app.wiring import Services
from slipstream_gateway.console.endpoints import EventsEndpoint, KillsEndpoint, PageEndpoint
from slipstream_gateway.console.feed import Feed
from slipstream_gateway.console.keys import KeysView
from slipstream_gateway.console.snapshots import ConsoleView, StateView
from slipstream_gateway.console.switching import CommandKillSwitch, FileKillSwitch, OwnKillSwitch
from slipstream_gateway.sources.file import FileSource
from slipstream_gateway.telemetry.audit import Audit


def console_routes(
    services: Services, settings: GatewaySettings, *, site: RequestCheck, check: RequestCheck
) -> Sequence[BaseRoute]:
    """The page and its files are open to all requests that pass `site`: they hold no data. The figures and the kill
    switch are for admins, by `check`."""
    keys = KeysView(services.access if isinstance(services.access, KeyedAccess) else None)
    state = StateView(
        fleet=services.fleet,
        recorder=services.recent_traffic,
        evidence=services.evidence,
        admission=services.admission,
        denied=_denied(services.access),
    )
    switch, own = _kill_switch(services, settings), _own_switch(services)
    view = ConsoleView(
        fleet=services.fleet,
        learner=services.learner,
        state=state,
        switch=switch,
        own=own,
        keys=keys,
        configuration=services.source.status,
        version=version("slipstream-serving"),
    )
    page = PageEndpoint()

    def kills(path: str, turned: KillSwitch) -> Route:
        endpoint = KillsEndpoint(
            turned,
            is_pair=_is_pair(services, turned),
            caller=lambda scope: require_admin(services.access, scope).key_id,
            has_keys=not services.access.is_open,
            on_turn=_audit_turn(services.audit),
        )
        return Route(path, Checked(request_response(endpoint.respond), check), methods=["POST", "DELETE"])

    # Without keys and without a port of its own, everybody who sends requests could stop speculation.
    may_turn_own = own is None or settings.access.enabled or settings.admin.port is not None
    events = Checked(EventsEndpoint(Feed(view.sections), check), check)
    return [
        Route("/console", Checked(request_response(page.page), site), methods=["GET"]),
        Route("/console/{name}", Checked(request_response(page.asset), site), methods=["GET"]),
        Route("/admin/events", events, methods=["GET"]),
        kills("/admin/kills/{pair:path}", switch),
        *([kills("/admin/gateway-kills/{pair:path}", own or switch)] if may_turn_own else []),
    ]


def _own_switch(services: Services) -> OwnKillSwitch | None:
    """This gateway's own switch beside those of a cluster's objects; None beside a manifest file."""
    source = services.source
    if isinstance(source, FileSource):
        return None
    from slipstream_gateway.sources.cluster.source import ClusterSource

    return OwnKillSwitch(source, apply=source.apply) if isinstance(source, ClusterSource) else None


def _kill_switch(services: Services, settings: GatewaySettings) -> KillSwitch:
    """The client of Kubernetes' API is imported only if it is used."""
    source = services.source
    if settings.cluster is not None and settings.admin.kill_switch:
        from slipstream_gateway.sources.cluster.kill_switch import ClusterKillSwitch

        return ClusterKillSwitch(settings.cluster)
    if not isinstance(source, FileSource):
        return CommandKillSwitch()
    return FileKillSwitch(source.kills, apply=source.apply, refresh=source.obey_kills)


def _is_pair(services: Services, switch: KillSwitch) -> Callable[[str], bool]:
    """Accepts served pairs, and pairs that are no longer served but killed: it must be possible to revert their
    kill."""

    def check(pair: str) -> bool:
        served = (one.route.key for one in services.fleet.current.routes.values())
        return pair in served or pair in switch.kills.pairs

    return check


def _denied(access: AccessControl) -> Callable[[], Mapping[str, int]]:
    """Reads the number of requests that keys and their limits refused; empty without keys."""
    return (lambda: access.counts.denied) if isinstance(access, KeyedAccess) else dict


def _audit_turn(audit: Audit) -> Callable[[KillEvent], None]:
    def tell(event: KillEvent) -> None:
        audit.event("kill" if event.on else "unkill", who=event.by, pair=event.pair, reason=event.reason)

    return tell
