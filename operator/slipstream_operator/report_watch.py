"""The gateways' reports, which lie in one namespace whatever is watched: listed and watched apart from the rest.

Without them the operator does all its work; only `status.gateways` stays empty.
"""

from __future__ import annotations

import asyncio
import logging

from slipstream_operator.cluster.api import KubeApi
from slipstream_operator.cluster.resources import Kind, Resource
from slipstream_operator.errors import ApiError
from slipstream_operator.intake import Intake

_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0

_logger = logging.getLogger(__name__)


class ReportWatch:
    """Hands the Leases of `namespace` that are reports to the intake."""

    def __init__(self, api: KubeApi, resource: Resource, namespace: str, intake: Intake) -> None:
        self._api, self._resource, self._intake = api, resource, intake
        self._namespace = namespace
        self._path = resource.collection(namespace)

    async def first(self) -> None:
        """List them once, so that nobody is told of gateways that are not there; a failure is only logged."""
        try:
            await self._list()
        except ApiError as exc:
            _logger.warning("the gateways' reports cannot be read: %s", exc)

    async def run(self) -> None:
        """List and watch, over and over, until cancelled."""
        pause_s = _RETRY_S
        while True:
            try:
                version = await self._list()
                pause_s = _RETRY_S
                async for event_type, lease in self._api.watch(
                    self._path, selector=self._resource.selector, version=version
                ):
                    self._intake.observe(event_type, lease)
            except ApiError as exc:
                _logger.warning("the gateways' reports cannot be read, trying again in %g s: %s", pause_s, exc)
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_RETRY_S, 2 * pause_s)

    async def _list(self) -> str:
        listed = await self._api.list(self._path, selector=self._resource.selector)
        self._intake.observe_list(Kind.LEASE, listed.items, version=listed.version, scope=self._namespace)
        return listed.version
