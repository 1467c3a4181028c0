"""What is withheld from servers: because of the findings of their last check, and because of answers in traffic."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

from slipstream_core.key_groups import GROUPS, group_of
from slipstream_core.manifest.dialects import DIALECTS
from slipstream_core.manifest.table import Backend
from slipstream_core.observation import ParityResult
from slipstream_core.types import Capability, Reason, Withheld

from slipstream_gateway.fleet.snapshot import ServedRoute
from slipstream_gateway.lossless.findings import Finding, Result, Subject
from slipstream_gateway.lossless.score import ALARM_AT, SampledTest, ScoredPair
from slipstream_gateway.lossless.traffic import Candidate, Key, Recording
from slipstream_gateway.upstreams.base import Drafting
from slipstream_gateway.upstreams.pool import Replica

_NOT_YET = Withheld(
    reason=Reason.ENGINE_UNVERIFIED, detail="no check has confirmed yet that this server's speculation is lossless"
)
_CAPABILITIES = {
    Subject.GREEDY_SPECULATION: Capability.GREEDY_SPECULATION,
    Subject.SAMPLED_SPECULATION: Capability.SAMPLED_SPECULATION,
}
_REPORTED = {
    Subject.DRAFT_LENGTH: "draft lengths are not followed",
    Subject.DIALECT: "the server does not speak the dialect of its arm",
}
"""Subjects whose failure is a warning."""
_log = logging.getLogger(__name__)


class Watch:
    """The state of `replica`, a server of the speculative arm `backend` of `pairs`.

    A server of another engine may speculate on requests of a kind once a check of that kind has passed. Slipstream's
    own engine is trusted with both kinds until a check fails: it does not score, and its own test suite covers more
    than a check can. `findings` are the newest of each subject.
    """

    def __init__(self, pairs: Sequence[str], replica: Replica, backend: Backend) -> None:
        self.pairs = tuple(pairs)
        self.replica = replica
        self.findings: dict[Subject, Finding] = {}
        self.checked_s: float | None = None
        self._gives_ids = DIALECTS[backend.dialect].ids_in_traffic
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
        """Whether another process may respond than at the last `renew`: the server was unreachable since then, or
        describes its drafting differently."""
        return self._seen != self._process()

    @property
    def is_unverified(self) -> bool:
        """Whether no check has had a result yet, so that the server does not speculate at all."""
        return self.replica.withheld.get(Capability.GREEDY_SPECULATION) is _NOT_YET

    def exceeds(self, draft_length: int) -> bool:
        """Whether `draft_length` exceeds the draft length of the check."""
        return 0 < self._judged_length < draft_length

    def renew(self) -> None:
        """Forgets the findings about the server."""
        self._seen = self._process()
        self._judged_length = 0
        self.findings.clear()
        self._distrusted.clear()
        self.replica.withheld = self.replica.unverified

    def apply(self, findings: Sequence[Finding], *, draft_length: int) -> bool:
        """Applies the findings of a check with drafts of `draft_length`: a failed capability is withheld, a passed one
        is restored. Without data nothing changes. Returns whether a capability was withdrawn."""
        withheld = dict(self.replica.withheld)
        for finding in findings:
            known = self.findings.get(finding.subject)
            if known is None or finding.result is not Result.NO_DATA:
                self.findings[finding.subject] = finding
            capability = _CAPABILITIES.get(finding.subject)
            if capability is None:
                self._report(known, finding)
                continue
            if finding.result is Result.NO_DATA:
                self._report_no_data(finding)
                continue
            if finding.subject is Subject.SAMPLED_SPECULATION:
                self.replica.gives_token_ids |= self._gives_ids
            self._unchecked.discard(finding.subject)
            self._judged_length = max(self._judged_length, draft_length)
            withheld.pop(capability, None)
            if finding.result is Result.FAIL:
                withheld[capability] = Withheld(reason=Reason.ENGINE_NOT_LOSSLESS, detail=finding.detail)
        return self._withhold(withheld | self._distrusted)

    def _report(self, known: Finding | None, finding: Finding) -> None:
        """Withdraws nothing: answers are correct, but the server does not do what the gateway counts on."""
        if finding.result is Result.FAIL and (known is None or known.result is not Result.FAIL):
            _log.warning("%s: %s: %s", self._name, _REPORTED[finding.subject], finding.detail)

    def _report_no_data(self, finding: Finding) -> None:
        """Logs once per server, because repeated checks add no information."""
        if finding.subject not in self._unchecked:
            self._unchecked.add(finding.subject)
            _log.warning("%s: %s cannot be checked: %s", self._name, finding.subject, finding.detail)

    def distrust(self, capability: Capability, detail: str) -> bool:
        """Withdraws a capability because of answers in traffic, until the server is replaced. Returns whether the
        server had it."""
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
            _log.warning("%s: %s is withdrawn: %s", self._name, capability, withheld[capability].detail)
        for capability in before.keys() - withheld.keys():
            _log.info("%s: %s passed its check", self._name, capability)
        return bool(lost)

    def _process(self) -> tuple[int, Drafting]:
        """The identity of the server's process."""
        return self.replica.losses, self.replica.upstream.drafting._replace(limit=None)


def _reason(withheld: Mapping[Capability, Withheld], capability: Capability) -> Reason | None:
    found = withheld.get(capability)
    return found.reason if found is not None else None


MAX_RUN = 32
"""The maximum number of answers of a run that count as mismatches after an alarm."""
Distrust = Callable[[str, Capability, str], None]
"""Withdraws a capability from all servers of a pair, with the reason in one sentence."""


class _Run:
    """The tests of one pair and class in an `epoch`: of all answers, and of those without each group of API keys. If
    several groups have sent, each of the latter has to raise the alarm, so that one key cannot, which may repeat a
    request and a seed whose answers differ by chance. An alarm stays. `matches` are the recordings since the evidence
    was last 0 or less."""

    def __init__(self, epoch: tuple[str, int]) -> None:
        self.epoch = epoch
        self.test = SampledTest()
        self.alarm = False
        self.matches: deque[Recording] = deque(maxlen=MAX_RUN)
        self._keys: list[str] = []  # the first one of each group
        self._without: list[SampledTest] = []

    def add(self, caller: str, pair: ScoredPair) -> bool:
        """Adds a pair of answers to a request of the key `caller`. Returns whether it counts as a mismatch."""
        if len(self._keys) < GROUPS and caller not in self._keys:
            self._keys.append(caller)
            self._without.append(deepcopy(self.test))
        group = group_of(caller, self._keys)
        for test in (self.test, *(test for index, test in enumerate(self._without) if index != group)):
            test.add(pair)
        self.alarm = self.alarm or all(test.alarm for test in self._counted())
        return self.alarm or self.test.is_garbage(pair)

    @property
    def evidence(self) -> float:
        return min(test.evidence for test in self._counted())

    def _counted(self) -> list[SampledTest]:
        return self._without if len(self._without) > 1 else [self.test]


class SampledTests:
    """One test per pair and class. An alarm stays until the pair's manifest changes or a server of its speculative arm
    is lost, because other processes may then give the answers."""

    def __init__(self, distrust: Distrust) -> None:
        self._distrust = distrust
        self._runs: dict[Key, _Run] = {}

    def judge(self, candidate: Candidate, pair: ScoredPair | None) -> bool:
        """Adds a comparison; None: the answers are equal. Returns whether it counts as a mismatch."""
        run = self._run(candidate)
        if pair is None:
            run.test.add_equal()
            return False
        was_alarmed = run.alarm
        mismatched = run.add(candidate.caller, pair)
        if run.alarm and not was_alarmed:
            self._alarm(candidate, run)
        elif not mismatched:
            run.matches.append(candidate.recording())
            if run.evidence <= 0.0:
                run.matches.clear()
        return mismatched

    def evidence(self, key: Key) -> float | None:
        """The evidence against the answers of a pair and class, in nats; None without one. May be called from any
        thread."""
        run = self._runs.get(key)
        return None if run is None else run.evidence

    def _run(self, candidate: Candidate) -> _Run:
        epoch = _epoch(candidate.served)
        run = self._runs.get(candidate.key)
        if run is None or run.epoch != epoch:
            run = self._runs[candidate.key] = _Run(epoch)
        return run

    def _alarm(self, candidate: Candidate, run: _Run) -> None:
        """Raises the alarm. The guards of the arm count answers, and all answers of the run were recorded as matches.
        So the run is now recorded as mismatches."""
        pair, request_class = candidate.key
        detail = (
            f"sampled answers of {request_class} are less likely under the target than plain ones: "
            f"evidence {run.evidence:.1f} of {ALARM_AT:.1f} after {run.test.answers} answers"
        )
        _log.warning("parity of %s: %s", pair, detail)
        for record in run.matches:
            record(ParityResult.MISMATCH)
        run.matches.clear()
        self._distrust(pair, Capability.SAMPLED_SPECULATION, detail)


def _epoch(served: ServedRoute) -> tuple[str, int]:
    pool = served.speculative
    return served.route.generation, sum(replica.losses for replica in pool.replicas) if pool is not None else 0
