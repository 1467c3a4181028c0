"""An upstream whose address the rules refuse, so that no connection is opened."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_core.errors import UpstreamUnavailable

from slipstream_gateway.upstreams.base import ANY_DRAFT, Completion, Drafting, Job, Stream, TokenScore


class RefusedUpstream:
    """Every request to it fails as with a server that is down, so that a pair with another server keeps working."""

    gives_token_ids = False
    sends_tokens = False
    answers_probes = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def drafting(self) -> Drafting:
        return ANY_DRAFT

    async def complete(self, job: Job) -> Completion:
        raise self._error()

    async def open(self, job: Job) -> Stream:
        raise self._error()

    async def probe(self) -> None:
        raise self._error()

    async def stop_drafting(self) -> None:
        """No answers run here."""

    async def score(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        *,
        model: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> tuple[TokenScore, ...]:
        raise self._error()

    async def aclose(self) -> None:
        """Holds no resources."""

    def _error(self) -> UpstreamUnavailable:
        return UpstreamUnavailable("The upstream's address is not permitted by --allow-endpoint.", detail=self._reason)
