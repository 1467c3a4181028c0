"""The reflector of the gateways' reports, beside kopf's watch. The reports are in one namespace, whether or not it is
watched.

The operator works without them; only `status.gateways` stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_core.kube.client import Json, KubeClient
from slipstream_core.kube.reflector import Change, Pace, Reflector

from slipstream_operator.cluster.resources import Kind, Resource
from slipstream_operator.handlers.informer import Informer

_PACE = Pace(first_pause_s=1.0, longest_pause_s=30.0)


def report_reflector(client: KubeClient, resource: Resource, namespace: str, informer: Informer) -> Reflector:
    """A reflector that passes the Leases of `namespace` that are reports to `informer`."""
    sink = _ReportSink(informer, namespace)
    sink.reflector = Reflector(client, (resource.collection(namespace),), sink, selector=resource.selector, pace=_PACE)
    return sink.reflector


class _ReportSink:
    reflector: Reflector

    def __init__(self, informer: Informer, namespace: str) -> None:
        self._informer, self._namespace = informer, namespace

    def replaced(self, items: Sequence[Json]) -> None:
        version = self.reflector.listed_version
        self._informer.observe_list(Kind.LEASE, items, version=version, scope=self._namespace)

    def changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._informer.observe("DELETED" if change.deleted else "MODIFIED", change.item)
