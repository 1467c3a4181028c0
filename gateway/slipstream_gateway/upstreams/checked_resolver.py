"""Names of upstreams to addresses, as far as the rules allow."""

from __future__ import annotations

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from slipstream_gateway.upstreams.endpoint_rules import EndpointRules


class CheckedResolver(AbstractResolver):
    """Names to addresses; what the rules refuse is not among them. The connection goes to what was looked at."""

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
        """Nothing is kept open."""
