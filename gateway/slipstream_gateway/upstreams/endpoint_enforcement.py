"""Enforcement of `endpoint_rules`: no connection is opened to an address that the rules refuse, neither as the manifest
writes it nor as its name resolves.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from slipstream_core.errors import UpstreamUnavailable

from slipstream_gateway.upstreams.base import ANY_DRAFT, Completion, Drafting, Job, Stream
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules


class RefusedUpstream:
    """Every request to it fails as with a server that is down, so that a pair with another server keeps working."""

    gives_token_ids = False
    answers_probes = False
    fingerprint = ""
    scores = True  # a request for scores fails as every other one
    draft_standings = ()

    def __init__(self, message: str, *, reason: str = "") -> None:
        """Clients get the `message`, the log gets the `reason` as well."""
        self._message = message
        self._reason = reason

    @property
    def drafting(self) -> Drafting:
        return ANY_DRAFT

    async def meet(self) -> None:
        """There is no server."""

    async def complete(self, job: Job) -> Completion:
        raise self._error()

    async def open(self, job: Job) -> Stream:
        raise self._error()

    async def probe(self) -> None:
        raise self._error()

    async def models(self) -> Mapping[str, int | None]:
        raise self._error()

    async def stop_drafting(self) -> None:
        """No answers run here."""

    async def aclose(self) -> None:
        """Holds no resources."""

    def _error(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(self._message, detail=self._reason)


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses and drops those that the rules refuse. The connection uses exactly the addresses that
    were checked."""

    def __init__(self, rules: EndpointRules) -> None:
        self._rules = rules

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await ThreadedResolver().resolve(host, port, family)
        refusals = [self._rules.refuse_address(ipaddress.ip_address(one["host"].partition("%")[0])) for one in found]
        kept = [one for one, refusal in zip(found, refusals, strict=True) if refusal is None]
        if not kept:
            raise OSError(f"{host} is refused: {next(filter(None, refusals), 'it has no address')}")
        return kept

    async def close(self) -> None:
        """Holds no resources."""
