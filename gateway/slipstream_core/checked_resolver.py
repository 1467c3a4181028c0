"""Enforcement of `endpoint_rules` as a name resolves: no connection is opened to an address that the rules refuse."""

from __future__ import annotations

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from slipstream_core.endpoint_rules import EndpointRules


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
