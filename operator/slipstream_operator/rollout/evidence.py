"""The operator's evidence: the outcomes that gateways store in Redis, in one ledger per policy, and in one per new
revision of a pair."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

import msgspec
from slipstream_core.manifest.serving import Canary
from slipstream_core.manifest.speculation_policy import SpeculationPolicy, SpeculationPolicySpec
from slipstream_core.manifest.status import CanaryStatus, SpeculationPolicyStatus
from slipstream_core.observation import Observation
from slipstream_core.redis.inbox import Position
from slipstream_core.redis.redis_store import RedisStore

from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.rollout.analysis.checkpoint import CheckpointError
from slipstream_operator.rollout.analysis.facts import ClassFacts
from slipstream_operator.rollout.analysis.ledger import PolicyLedger
from slipstream_operator.rollout.analysis.revisions import RevisionFacts, RevisionLedger
from slipstream_operator.rollout.draft_drift import DriftWatch
from slipstream_operator.status.conditions import seconds_of
from slipstream_operator.types import Note

CHECKPOINT_LOST = "CheckpointLost"
# A store may be unreachable, or not read to its end, for this time without effect: restarts are normal.
GRACE_S = 15.0
_INTERVAL_S = 1.0
# The pause between two reconciles of a policy with traffic. It keeps the cost of 1,000 policies low.
_CHANGED_EVERY_S = 2.0
_START = Position(entry="0-0", numbers={})
_log = logging.getLogger(__name__)


class _Book:
    """The ledger of one policy. `spec` is the policy's last valid spec, None if it never had one."""

    def __init__(self, key: ObjectKey, ledger: PolicyLedger, spec: SpeculationPolicySpec | None, now_s: float) -> None:
        self.key, self.ledger, self.spec = key, ledger, spec
        self.drafts = DriftWatch()
        self.opened_s = self.current_s = now_s
        self.was_read = self.is_followed = False
        self.pending: asyncio.TimerHandle | None = None


class _Comparison:
    """The ledger of one new revision, of the pair `key`."""

    def __init__(self, key: ObjectKey, ledger: RevisionLedger) -> None:
        self.key, self.ledger = key, ledger
        self.pending: asyncio.TimerHandle | None = None


class CollectedEvidence:
    """The ledgers of all policies in force, and of all new revisions, from the Redis streams in which gateways share
    outcomes. It never writes. Without Redis (`url` None) it has no outcomes, so no class is promoted.

    The constructor checks `url` (`CommandError`); `run` makes the first connection. `changed` is called with the key of
    a policy, or of a pair with a new revision, soon after outcomes of it were delivered. `clock_s` is the wall clock,
    in seconds since 1970. All methods must be called in the event loop of `run`.
    """

    def __init__(
        self,
        url: str | None,
        *,
        interval_s: float = _INTERVAL_S,
        changed: Callable[[ObjectKey], None] | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._store: RedisStore | None = None
        if url is not None:
            said = "classes keep their phase until it is back"
            self._store = RedisStore(url, pairs=self._followed_pairs, interval_s=interval_s, meanwhile=said)
        self._changed, self._clock_s = changed, clock_s
        self._missed = self._rewound = 0
        self._books: dict[ObjectKey, _Book] = {}
        self._by_pair: dict[str, _Book] = {}
        self._comparisons: dict[str, _Comparison] = {}

    async def run(self) -> None:
        """Reads outcomes until cancelled."""
        if self._store is None:
            await asyncio.get_running_loop().create_future()
        else:
            await self._store.run(self._apply, self._passed)

    async def aclose(self) -> None:
        if self._store is not None:
            await self._store.aclose()

    def open(
        self,
        key: ObjectKey,
        policy: SpeculationPolicy | None,
        *,
        pair_key: str,
        checkpoint: str,
        archived: str = "",
        created: str = "",
    ) -> Note | None:
        """Open the policy's ledger. If the ledger is open already, only store the spec.

        It is restored from `checkpoint`, that of the status, and if this has no evidence, from the `archived` one.
        `policy` is None if it cannot be read; the last spec then stays in force. `created` is the policy's creation
        time: earlier outcomes do not count. Returns a note if the checkpoint cannot be read.
        """
        known, spec = self._books.get(key), policy.spec if policy is not None else None
        if known is not None and self.is_open(key, pair_key):
            known.spec = spec or known.spec
            return None
        self.close(key)
        if (rival := self._by_pair.get(pair_key)) is not None:
            self.close(rival.key)
        self._comparisons.pop(pair_key, None)  # its outcomes are delivered again
        ledger = PolicyLedger(pair_key, spec, begun_s=seconds_of(created, -math.inf))
        lost = restore(ledger, checkpoint, archived)
        book = _Book(key, ledger, spec, self._clock_s())
        self._books[key] = self._by_pair[pair_key] = book
        self._resume(pair_key, ledger.position or _START)
        return lost

    def is_open(self, key: ObjectKey, pair_key: str) -> bool:
        """Whether the policy has a ledger, of the pair `pair_key`."""
        book = self._books.get(key)
        return book is not None and book.ledger.pair == pair_key

    def close(self, key: ObjectKey) -> None:
        """Drop the ledger of a policy that was deleted or is no longer in force."""
        book = self._books.pop(key, None)
        if book is not None and self._by_pair.get(book.ledger.pair) is book:
            del self._by_pair[book.ledger.pair]

    def is_connected(self, key: ObjectKey) -> bool:
        """Whether the facts count as complete: less than `GRACE_S` ago the store was read to its end, or the ledger was
        opened. False for a policy that was not opened."""
        book = self._books.get(key)
        if book is None:
            return False
        now_s = self._clock_s()
        if self._is_read(book.ledger.pair):
            book.current_s = now_s
        return now_s - book.current_s < GRACE_S

    def facts(self, key: ObjectKey) -> Mapping[str, ClassFacts]:
        """The facts of each class with outcomes; empty for a policy that was not opened."""
        book = self._books.get(key)
        if book is None:
            return {}
        facts = book.ledger.facts(self._clock_s())
        book.was_read = book.was_read or self._is_read(book.ledger.pair)
        if book.was_read:
            return facts
        return {name: unread(one, book.opened_s) for name, one in facts.items()}

    def take_notes(self, key: ObjectKey) -> tuple[Note, ...]:
        """The notes about drafts that have become worse since the last call. Only policies that capture answers have
        such notes."""
        book = self._books.get(key)
        return book.drafts.take() if book is not None else ()

    def checkpoint(
        self, key: ObjectKey, status: SpeculationPolicyStatus, *, paused: bool = False, evidence: bool = True
    ) -> str:
        """The checkpoint from which `open` restores the ledger; empty for a policy that was not opened.

        It contains the state of the classes in `status`. The short one without `evidence` is stored in that status.
        `follow` must be called with the same `status` and `paused`.
        """
        book = self._books.get(key)
        return book.ledger.checkpoint(status, paused=paused, evidence=evidence) if book is not None else ""

    def follow(self, key: ObjectKey, status: SpeculationPolicyStatus, *, paused: bool = False) -> None:
        """Set the status in force: one that is stored, never one whose write failed. Outcomes of the policy are read
        from the first call on. While `paused`, outcomes are no evidence."""
        book = self._books.get(key)
        if book is not None:
            book.ledger.follow(book.spec, status, paused=paused)
            book.is_followed = True

    def compare(self, key: ObjectKey, status: CanaryStatus, canary: Canary) -> RevisionFacts | None:
        """The facts about the new revision in `status` of the pair `key`. None while outcomes cannot be read.

        The first call for a comparison opens its ledger. Outcomes before the comparison began do not count. After a
        restart of the operator, only those count that are read from then on.
        """
        pair = f"{key.namespace}/{key.name}"
        known = self._comparisons.get(pair)
        if known is None or not known.ledger.is_of(status.revision, canary):
            begun_s = seconds_of(status.since, self._clock_s())
            ledger = RevisionLedger(pair=pair, revision=status.revision, canary=canary, begun_s=begun_s)
            known = self._comparisons[pair] = _Comparison(key, ledger)
            if pair not in self._by_pair:
                self._resume(pair, _START)
        return known.ledger.facts() if self._is_read(pair) else None

    def end_comparison(self, key: ObjectKey) -> None:
        """Drop the ledger of the new revision of the pair `key`, if it has one."""
        self._comparisons.pop(f"{key.namespace}/{key.name}", None)

    def _followed_pairs(self) -> tuple[str, ...]:
        """The pairs whose classes have a known state: without it, the outcomes that count are not known. And the pairs
        with a new revision."""
        followed = [pair for pair, book in self._by_pair.items() if book.is_followed]
        compared = [pair for pair in self._comparisons if pair not in self._by_pair]
        return (*followed, *compared)

    def _apply(self, seen: Observation) -> None:
        if (comparison := self._comparisons.get(seen.subject.pair)) is not None:
            comparison.ledger.record(seen, now_s=self._clock_s())
        book = self._by_pair.get(seen.subject.pair)
        if book is not None and book.is_followed:
            book.ledger.record(seen, now_s=self._clock_s())
            if book.spec is not None and book.spec.capture is not None:  # only captured answers can train a draft
                book.drafts.record(seen)

    def _resume(self, pair: str, position: Position) -> None:
        if self._store is not None:
            self._store.resume(pair, position)

    def _is_read(self, pair: str) -> bool:
        """Whether all outcomes of `pair` that are known to be stored were delivered."""
        return self._store is not None and self._store.is_read(pair)

    def _log_losses(self, store: RedisStore) -> None:
        """Log outcomes that were lost in Redis."""
        status = store.status()
        if status.rewound > self._rewound:
            _log.warning("Redis returned with other data: its streams are read from the beginning, each outcome once")
        if status.missed > self._missed:
            lost = status.missed - self._missed
            _log.warning("Redis removed %d outcomes before they were read: they are missing as evidence", lost)
        self._missed, self._rewound = status.missed, status.rewound

    def _passed(self, pair: str, position: Position) -> None:
        if self._store is not None:
            self._log_losses(self._store)
        if (comparison := self._comparisons.get(pair)) is not None:
            self._tell_later(comparison)
        book = self._by_pair.get(pair)
        if book is None or not book.is_followed:
            return
        book.ledger.passed(position)
        self._tell_later(book)
        if self._changed is not None and book.ledger.shows_loss():
            self._tell(book, self._changed)

    def _tell_later(self, book: _Book | _Comparison) -> None:
        if self._changed is not None and book.pending is None:
            book.pending = asyncio.get_running_loop().call_later(_CHANGED_EVERY_S, self._tell, book, self._changed)

    def _tell(self, book: _Book | _Comparison, changed: Callable[[ObjectKey], None]) -> None:
        if book.pending is not None:
            book.pending.cancel()
            book.pending = None
        if book is self._books.get(book.key) or book in self._comparisons.values():
            changed(book.key)


def restore(ledger: PolicyLedger, checkpoint: str, archived: str) -> Note | None:
    """Restore `ledger` from the status' `checkpoint`, and from the `archived` one unless that has evidence, as those of
    earlier versions have. Returns a note about one that cannot be read."""
    lost = None
    for place, text in (("status.checkpoint", checkpoint), ("the stored evidence", archived)):
        if not text or ledger.position is not None:
            continue
        try:
            ledger.restore(text)
        except CheckpointError as error:
            message = f"{place}: {error}: guards restart, and classes whose state is lost are not above step 1"
            lost = lost or Note(type="Warning", reason=CHECKPOINT_LOST, message=message)
    return lost


def unread(facts: ClassFacts, opened_s: float) -> ClassFacts:
    """`facts` for a ledger that was opened at `opened_s`, before the store was read to its end.

    A class without traffic cannot be distinguished yet from a class with unread outcomes in the store, so
    `last_outcome_s` is at least `opened_s`.
    """
    heard_s = max(facts.last_outcome_s or 0.0, opened_s)
    return msgspec.structs.replace(facts, last_outcome_s=heard_s, complete=False)
