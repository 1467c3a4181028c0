"""The addresses of a pair's servers, from EndpointSlices.

Without a ready server, a Service's requests go to those that leave but still serve, as kube-proxy does it (KEP-1669).
Without these, they go to the last ones that are still listed, like those of Envoy's panic mode: a node whose kubelet is
silent makes its pods unready, and their servers may be well. The gateway's own checks eject those that are not.

`discovery.k8s.io/v1` and `v1beta1` agree in the fields that are read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slipstream_core.kube.client import Json
from slipstream_core.manifest.naming import GRPC_PORT_NAME, HTTP_PORT_NAME

GRPC_PORT, HTTP_PORT = 8001, 8000
SERVICE_LABEL = "kubernetes.io/service-name"
_FAMILIES = ("IPv4", "IPv6")


def service_of(piece: Mapping[str, Any]) -> str | None:
    """`namespace/name` of the Service that an EndpointSlice belongs to; None where it belongs to none."""
    metadata = piece.get("metadata") or {}
    service = (metadata.get("labels") or {}).get(SERVICE_LABEL)
    return f"{metadata.get('namespace')}/{service}" if service else None


def is_ready(conditions: Mapping[str, Any]) -> bool:
    """By the API's rules: a missing condition means ready, and not terminating."""
    return conditions.get("ready") is not False and conditions.get("terminating") is not True


def is_serving(conditions: Mapping[str, Any]) -> bool:
    """Whether a server answers, although its pod may be ending. A missing condition says nothing of that."""
    return conditions.get("serving") is True


def is_staying(conditions: Mapping[str, Any]) -> bool:
    """Whether a server's pod is not ending."""
    return conditions.get("terminating") is not True


def addresses(
    slices: Iterable[Mapping[str, Any]], condition: Callable[[Mapping[str, Any]], bool] = is_ready
) -> tuple[str, ...]:
    """The addresses of all servers under `condition` in the slices of one Service, each once, in a stable order:
    `grpc://host:port` where they have a port for gRPC, as Triton does, else `http://host:port`.

    A Service with both families has every pod twice: its IPv4 addresses are taken, where it has any.
    """
    by_family: dict[str, set[str]] = {family: set() for family in _FAMILIES}
    for piece in slices:
        family = piece.get("addressType")
        address = _address(piece.get("ports") or ())
        if family in by_family and address is not None:
            hosts = _hosts(piece.get("endpoints") or (), condition)
            by_family[family] |= {address.format(f"[{host}]" if family == "IPv6" else host) for host in hosts}
    return next((tuple(sorted(found)) for found in by_family.values() if found), ())


def unlisted_addresses(name: str, namespace: str) -> tuple[str, ...]:
    """The addresses of a Service whose servers are not known yet, by its name, which DNS resolves. Those of the wrong
    protocol are dropped with the pair."""
    host = f"{name}.{namespace}.svc"
    return f"grpc://{host}:{GRPC_PORT}", f"http://{host}:{HTTP_PORT}"


def trim_slice(item: Json) -> Json:
    """An EndpointSlice without the fields that are not read here."""
    metadata = item.get("metadata") or {}
    kept = {key: metadata.get(key) for key in ("name", "namespace", "uid", "labels", "resourceVersion")}
    endpoints = [
        {"addresses": endpoint.get("addresses"), "conditions": endpoint.get("conditions")}
        for endpoint in item.get("endpoints") or ()
    ]
    return {
        "metadata": kept,
        "addressType": item.get("addressType"),
        "ports": item.get("ports"),
        "endpoints": endpoints,
    }


def _address(ports: Sequence[Mapping[str, Any]]) -> str | None:
    """The address of a server with `ports`, with a place for its host."""
    by_name = {port.get("name"): port["port"] for port in ports if port.get("port")}
    schemes = {GRPC_PORT_NAME: "grpc", HTTP_PORT_NAME: "http"}
    return next((f"{scheme}://{{}}:{by_name[name]}" for name, scheme in schemes.items() if name in by_name), None)


def _hosts(endpoints: Iterable[Mapping[str, Any]], condition: Callable[[Mapping[str, Any]], bool]) -> Iterator[str]:
    for endpoint in endpoints:
        if condition(endpoint.get("conditions") or {}):
            # All addresses of an endpoint are the same pod; consumers take the first.
            yield from (endpoint.get("addresses") or ())[:1]


class Endpoints:
    """The addresses of all Services, by `namespace/name`.

    `preloaded` are those that were known before the cluster was asked: they count until it has listed the namespace.
    """

    def __init__(self, preloaded: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._addresses = dict(preloaded or {})
        self._slices: dict[str, dict[str, Json]] = {}
        self._listed: set[str | None] = set()

    def of(self, service: str) -> tuple[str, ...]:
        """The servers of `service`. While they are not known, its name, which DNS resolves."""
        found = self._addresses.get(service)
        if found is not None:
            return found
        namespace, _, name = service.partition("/")
        if None in self._listed or namespace in self._listed:
            return ()
        return unlisted_addresses(name, namespace)

    def put(self, piece: Json) -> None:
        """Store a slice."""
        if (service := service_of(piece)) is not None:
            self._slices.setdefault(service, {})[piece["metadata"]["name"]] = piece
            self._refresh(service)

    def remove(self, piece: Json) -> None:
        service = service_of(piece)
        if service is not None and self._slices.get(service, {}).pop(piece["metadata"]["name"], None) is not None:
            self._refresh(service)

    def replace(self, namespace: str | None, pieces: Iterable[Json]) -> set[str] | None:
        """Store a complete list of a namespace (None: of all). Returns the Services whose servers may have changed;
        None for the first list: any of them."""
        is_first = namespace not in self._listed
        services = {service for service in (*self._addresses, *self._slices) if _within(service, namespace)}
        before = {service: self._addresses.get(service) for service in services}
        for service in services:
            self._slices.pop(service, None)
        for piece in pieces:
            owner = service_of(piece)
            if owner is not None:
                self._slices.setdefault(owner, {})[piece["metadata"]["name"]] = piece
                services.add(owner)
        self._listed.add(namespace)
        for service in services:
            self._refresh(service)
        if is_first:
            return None
        return {service for service in services if before.get(service) != self._addresses.get(service)}

    def known(self) -> dict[str, tuple[str, ...]]:
        """All known addresses, for the next start."""
        return dict(self._addresses)

    def _refresh(self, service: str) -> None:
        pieces = self._slices.get(service)
        if not pieces:
            self._slices.pop(service, None)
            self._addresses.pop(service, None)
            return
        found = addresses(pieces.values()) or addresses(pieces.values(), is_serving)
        if not found:
            staying = addresses(pieces.values(), is_staying)
            found = tuple(each for each in self._addresses.get(service, ()) if each in staying)
        self._addresses[service] = found


def _within(service: str, namespace: str | None) -> bool:
    return namespace is None or service.partition("/")[0] == namespace
