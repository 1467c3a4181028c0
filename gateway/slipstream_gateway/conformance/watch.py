"""What is known of one server: what the last check found, what is withheld because of it, and when it is due again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slipstream_gateway.conformance.verdict import Finding, Result, Subject
from slipstream_gateway.manifest.table import Backend
from slipstream_gateway.types import Capability, Reason, Withheld
from slipstream_gateway.upstreams.pool import Replica

_NOT_YET = Withheld(
    reason=Reason.ENGINE_UNVERIFIED, detail="no check has shown yet that this server's speculation is lossless"
)
_CAPABILITIES = {
    Subject.GREEDY_SPECULATION: Capability.GREEDY_SPECULATION,
    Subject.SAMPLED_SPECULATION: Capability.SAMPLED_SPECULATION,
}
_log = logging.getLogger(__name__)


class Watch:
    """The standing of `replica`, a server of the speculative arm `backend` of `pair`.

    A server of another engine does not speculate before its first check. Then it does so on greedy requests unless the
    check found a fault, and on sampled ones if it passed. Slipstream's own engine is trusted with both until a check
    says otherwise: its tests do what a check cannot, as it does not score. `findings` are the newest of each subject.
    """

    def __init__(self, pair: str, replica: Replica, backend: Backend) -> None:
        self.pair = pair
        self.replica = replica
        self.findings: dict[Subject, Finding] = {}
        self.checked_s: float | None = None
        self._seen = (replica.losses, replica.upstream.drafting)
        self._distrusted: dict[Capability, Withheld] = {}
        trusted = backend.own_engine
        replica.unverified = {} if trusted else dict.fromkeys(_CAPABILITIES.values(), _NOT_YET)
        replica.withheld = replica.unverified

    @property
    def is_another(self) -> bool:
        """Whether another process may answer than when the check began: the server could not be reached meanwhile, or
        says something else of what it can draft."""
        return self._seen != (self.replica.losses, self.replica.upstream.drafting)

    def begin(self) -> None:
        """A check begins."""
        self._seen = (self.replica.losses, self.replica.upstream.drafting)

    def renew(self) -> None:
        """Nothing is known of the server any more."""
        self.findings.clear()
        self._distrusted.clear()
        self.replica.withheld = self.replica.unverified

    def apply(self, findings: Sequence[Finding]) -> bool:
        """Takes in what a check found: a capability that failed is withheld, one that passed is given back. Where there
        is no data everything stays as it is, but greedy speculation no longer waits for a check that cannot be made.
        Returns whether a capability was taken away."""
        for finding in findings:
            known = self.findings.get(finding.subject)
            if known is None or finding.result is not Result.NO_DATA:
                self.findings[finding.subject] = finding
            if finding.subject is Subject.DRAFT_LENGTH:
                self._report_draft_length(known, finding)
            if finding.subject is Subject.SAMPLED_SPECULATION:
                self.replica.gives_token_ids |= finding.result is not Result.NO_DATA
        withheld = dict(self.replica.withheld)
        for finding in findings:
            capability = _CAPABILITIES.get(finding.subject)
            if capability is None:
                continue
            if finding.result is Result.NO_DATA:
                if capability is Capability.GREEDY_SPECULATION and withheld.get(capability) is _NOT_YET:
                    del withheld[capability]
                continue
            withheld.pop(capability, None)
            if finding.result is Result.FAIL:
                withheld[capability] = Withheld(reason=Reason.ENGINE_NOT_LOSSLESS, detail=finding.detail)
        return self._withhold(withheld | self._distrusted)

    def _report_draft_length(self, known: Finding | None, finding: Finding) -> None:
        """Takes nothing away: answers are right, but the server does not follow the draft lengths that it is sent."""
        if finding.result is Result.FAIL and (known is None or known.result is not Result.FAIL):
            _log.warning("%s of %s: draft lengths are not followed: %s", self.replica.name, self.pair, finding.detail)

    def distrust(self, capability: Capability, detail: str) -> bool:
        """Takes a capability away for what answers in traffic have shown, until the server is another one. Returns
        whether it had it."""
        self._distrusted[capability] = Withheld(reason=Reason.ENGINE_NOT_LOSSLESS, detail=detail)
        return self._withhold({**self.replica.withheld, **self._distrusted})

    def _withhold(self, withheld: Mapping[Capability, Withheld]) -> bool:
        before, self.replica.withheld = self.replica.withheld, withheld
        lost = [
            capability
            for capability, why in withheld.items()
            if why.reason is Reason.ENGINE_NOT_LOSSLESS and _reason(before, capability) is not why.reason
        ]
        for capability in lost:
            _log.warning(
                "%s of %s: %s is taken away: %s", self.replica.name, self.pair, capability, withheld[capability].detail
            )
        for capability in before.keys() - withheld.keys():
            _log.info("%s of %s: %s passed its check", self.replica.name, self.pair, capability)
        return bool(lost)


def _reason(withheld: Mapping[Capability, Withheld], capability: Capability) -> Reason | None:
    found = withheld.get(capability)
    return found.reason if found is not None else None
