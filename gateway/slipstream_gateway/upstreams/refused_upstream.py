"""The upstream in place of a server whose address the rules refuse."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_core.errors import UpstreamUnavailable

from slipstream_gateway.upstreams.base import ANY_DRAFT, Completion, Drafting, Job, Stream


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

    async def is_same(self) -> bool:
        raise self._error()

    async def models(self) -> Mapping[str, int | None]:
        raise self._error()

    async def stop_drafting(self) -> None:
        """No answers run here."""

    async def aclose(self) -> None:
        """Holds no resources."""

    def _error(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(self._message, detail=self._reason)
