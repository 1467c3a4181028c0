"""What is known of one server: what the last check found, and what is withheld because of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from slipstream_core.manifest.table import Backend
from slipstream_core.types import Capability, Reason, Withheld

from slipstream_gateway.conformance.verdict import Finding, Result, Subject
from slipstream_gateway.upstreams.base import Drafting
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
    """The standing of `replica`, a server of the speculative arm `backend` of `pairs`.

    A server of another engine speculates on requests of a kind once a check of that kind has passed. Slipstream's own
    engine is trusted with both kinds until a check says otherwise: its tests do what a check cannot, as it does not
    score. `findings` are the newest of each subject.
    """

    def __init__(self, pairs: Sequence[str], replica: Replica, backend: Backend) -> None:
        self.pairs = tuple(pairs)
        self.replica = replica
        self.findings: dict[Subject, Finding] = {}
        self.checked_s: float | None = None
        self._seen = self._process()
        self._judged_length = 0
        self._unchecked: set[Subject] = set()
        self._distrusted: dict[Capability, Withheld] = {}
        trusted = backend.own_engine
        replica.unverified = {} if trusted else dict.fromkeys(_CAPABILITIES.values(), _NOT_YET)
        replica.withheld = replica.unverified

    @property
    def _name(self) -> str:
        return f"{self.replica.name} of {', '.join(self.pairs)}"

    @property
    def is_another(self) -> bool:
        """Whether another process may answer than at the last `renew`: the server could not be reached meanwhile, or
        says something else of how it drafts."""
        return self._seen != self._process()

    @property
    def is_unverified(self) -> bool:
        """Whether no check has had a result yet: the server does not speculate at all."""
        return self.replica.withheld.get(Capability.GREEDY_SPECULATION) is _NOT_YET

    def exceeds(self, draft_length: int) -> bool:
        """Whether `draft_length` is longer than the drafts that the verdict is about."""
        return 0 < self._judged_length < draft_length

    def renew(self) -> None:
        """Nothing is known of the server any more."""
        self._seen = self._process()
        self._judged_length = 0
        self.findings.clear()
        self._distrusted.clear()
        self.replica.withheld = self.replica.unverified

    def apply(self, findings: Sequence[Finding], *, draft_length: int) -> bool:
        """Takes in what a check with drafts of `draft_length` found: a capability that failed is withheld, one that
        passed is given back. Where there is no data everything stays as it is. Returns whether a capability was taken
        away."""
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
                self._report_no_data(finding)
                continue
            self._unchecked.discard(finding.subject)
            self._judged_length = max(self._judged_length, draft_length)
            withheld.pop(capability, None)
            if finding.result is Result.FAIL:
                withheld[capability] = Withheld(reason=Reason.ENGINE_NOT_LOSSLESS, detail=finding.detail)
        return self._withhold(withheld | self._distrusted)

    def _report_draft_length(self, known: Finding | None, finding: Finding) -> None:
        """Takes nothing away: answers are right, but the server does not follow the draft lengths that it is sent."""
        if finding.result is Result.FAIL and (known is None or known.result is not Result.FAIL):
            _log.warning("%s: draft lengths are not followed: %s", self._name, finding.detail)

    def _report_no_data(self, finding: Finding) -> None:
        """Once for each server: repeated checks are no news."""
        if finding.subject not in self._unchecked:
            self._unchecked.add(finding.subject)
            _log.warning("%s: %s cannot be checked: %s", self._name, finding.subject, finding.detail)

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
            _log.warning("%s: %s is taken away: %s", self._name, capability, withheld[capability].detail)
        for capability in before.keys() - withheld.keys():
            _log.info("%s: %s passed its check", self._name, capability)
        return bool(lost)

    def _process(self) -> tuple[int, Drafting]:
        """What tells the server's process from the one before it."""
        return self.replica.losses, self.replica.upstream.drafting._replace(limit=None)


def _reason(withheld: Mapping[Capability, Withheld], capability: Capability) -> Reason | None:
    found = withheld.get(capability)
    return found.reason if found is not None else None
