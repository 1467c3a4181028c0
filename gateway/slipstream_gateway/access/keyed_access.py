"""Authentication, permissions and limits in front of all endpoints, when API keys are configured; and their counts."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec
from slipstream_core.errors import AccessError, Forbidden, ModelNotFound, NotAuthenticated
from slipstream_core.rate_limits import Charge, Grant, InUse, Limits, Refusal, Use
from slipstream_core.restricted_parameters import Restricted
from slipstream_core.tasks import cancel
from slipstream_core.types import GenerationRequest

from slipstream_gateway.access.arriving import ArrivingBodies
from slipstream_gateway.access.follow import KeyFile
from slipstream_gateway.access.key_text import PREFIX
from slipstream_gateway.access.keyring import INCORRECT, Keyring
from slipstream_gateway.access.limiting import Header, Limiter, limit_reached, rate_headers
from slipstream_gateway.access.parameters import not_permitted
from slipstream_gateway.access.principal import Principal, most_prompt_tokens, requested_output_tokens
from slipstream_gateway.access.records import Jwt
from slipstream_gateway.access.state_owners import StateOwners

MOST_SERIES = 1000
OTHER = "other"


class KeyUse(NamedTuple):
    """The usage of one key since the start."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0


class AccessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the counters. `denied` is by cause, `used` by key id, `decided` by where the limits were decided
    (Redis or local). `shared` says whether the replicas share their limits at present; None if they are not configured
    to."""

    keys: int
    denied: Mapping[str, int]
    used: Mapping[str, KeyUse]
    decided: Mapping[str, int]
    shared: bool | None


class Counts:
    """The counters of one gateway. Beyond `MOST_SERIES` keys, the remaining keys are counted together."""

    def __init__(self) -> None:
        self.denied: Counter[str] = Counter()
        self.used: dict[str, KeyUse] = {}
        self.decided: Counter[str] = Counter()

    def use(self, key_id: str, *, tokens: int, nano_usd: int) -> None:
        name = key_id if key_id in self.used or len(self.used) < MOST_SERIES else OTHER
        seen = self.used.get(name, KeyUse())
        self.used[name] = KeyUse(seen.requests + 1, seen.tokens + tokens, seen.nano_usd + nano_usd)


if TYPE_CHECKING:
    from slipstream_gateway.access.tokens import Tokens

_BEARER = re.compile("bearer +", re.IGNORECASE)  # RFC 9110, 11.4: one blank or more, no tab
_OF_STATE = frozenset({Restricted.PREVIOUS_RESPONSE_ID, Restricted.ITEM_REFERENCE})
_MISSING = "No API key provided. Send it as 'Authorization: Bearer <key>'."


class Lease:
    """The limits that an admitted request holds until it is settled, which happens exactly once."""

    __slots__ = ("_access", "_grant", "_principal", "_request", "headers")

    def __init__(self, access: KeyedAccess, principal: Principal, request: GenerationRequest, grant: Grant) -> None:
        self._access: KeyedAccess | None = access
        self._principal = principal
        self._request = request
        self._grant = grant
        self.headers = rate_headers(grant)

    @property
    def may_name_state(self) -> bool:
        """Whether later requests of the key may name the answer. An id that the client chose may be another's."""
        uses = [use.parameter for use in self._request.restricted]
        return not _OF_STATE.isdisjoint(self._principal.scopes.parameters) and Restricted.REQUEST_ID not in uses

    async def own(self, state_ids: Sequence[str]) -> None:
        """Notes that the key made the response and the items `state_ids`."""
        if self._access is not None:
            await self._access.owners.add(self._principal.key_id, state_ids)

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Corrects the charge to the tokens that the request used. None: unknown. An unknown prompt is charged at its
        maximum number of tokens, an unknown answer at the requested number. A second call has no effect."""
        access, self._access = self._access, None
        if access is None:
            return
        request = self._request
        prompt = most_prompt_tokens(request.prompt_size) if prompt_tokens is None else prompt_tokens
        output = requested_output_tokens(request) if output_tokens is None else output_tokens
        access.settle(self._principal, request.model, self._grant, prompt, output)


class KeyedAccess:
    """API keys from a followed file, tokens of the issuer in it, and limits by `limiter`. Active as an async context.

    `authenticate` and `authorize` never wait; `admit` waits for Redis at most, for a short time. `on_reload` is called
    with the number of keys after each reload.
    """

    is_open = False

    def __init__(
        self,
        keys: KeyFile,
        limiter: Limiter,
        *,
        most_arriving: int,
        owners: StateOwners | None = None,
        clock: Callable[[], float] = time.time,
        on_reload: Callable[[int], None] = lambda keys: None,
    ) -> None:
        self.counts = Counts()
        self.owners = owners or StateOwners()
        self._file = keys
        self._limiter = limiter
        self._bodies = ArrivingBodies(most_arriving)
        self._clock = clock
        self._on_reload = on_reload
        self._ring: Keyring | None = None
        self._tokens: Tokens | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._jwks_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises `CommandError` if the file is bad."""
        self._swap(await asyncio.to_thread(self._file.load))
        self._start(self._file.watch(self._swap))
        if self._limiter.shared is not None:
            self._start(self._limiter.shared.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(*self._tasks)
        if self._limiter.shared is not None:
            await self._limiter.shared.aclose()
        await self.owners.aclose()

    def authenticate(self, authorization: str | None) -> Principal:
        """The caller behind an `authorization` header. Raises `NotAuthenticated`, `Forbidden`, or `UpstreamUnavailable`
        while tokens cannot be verified yet."""
        try:
            return self._authenticate(authorization)
        except AccessError as exc:
            self.counts.denied["forbidden" if isinstance(exc, Forbidden) else "unauthenticated"] += 1
            raise

    def arriving(self, principal: Principal) -> AbstractContextManager[None]:
        """While a body of `principal` is read. Raises `Overloaded` if `most_arriving` of them arrive already."""
        return self._bodies.of(principal.key_id)

    def authorize(self, principal: Principal, request: GenerationRequest) -> None:
        """Checks whether `principal` may send `request`. Raises `ModelNotFound` for a model that the caller may not
        use, whether it exists or not, and `Forbidden`."""
        if not principal.may_use(request.model):
            self.counts.denied["forbidden"] += 1
            raise ModelNotFound(request.model)
        scopes = principal.scopes
        if not principal.may_demand(request.mode):
            raise self._forbid(f"x-slipstream-mode: {request.mode}")
        if request.draft_length is not None and not scopes.draft_length:
            raise self._forbid("x-slipstream-draft-length")
        if not request.learn and not scopes.learn:
            raise self._forbid("x-slipstream-learn: off")
        for use in request.restricted:
            if use.parameter not in scopes.parameters:
                self.counts.denied["forbidden"] += 1
                raise not_permitted(use)

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease:
        """Charges `request` to the caller's limits and takes its place. Raises `LimitReached`; `InvalidRequest` if
        it names stored state that is not the key's, `UpstreamUnavailable` while that cannot be looked up."""
        charge = self._keyring.prices.expected(request, principal.limits)
        grant = await self._take(principal.key_id, principal.limits, charge)
        lease = Lease(self, principal, request, grant)
        try:
            granted = principal.state.fullmatch
            await self.owners.check(principal.key_id, [one for one in request.state_ids if granted(one) is None])
        except BaseException:  # a cancelled request, too, gives its place and its charge back
            lease.settle(0, 0)
            raise
        return lease

    async def charge_request(self, principal: Principal) -> tuple[Header, ...]:
        """Charges a request that runs no generation: one request per minute, and nothing of the other limits. The
        headers hold the caller's remainders. Raises `LimitReached`."""
        limits, nothing = Limits(requests_per_minute=principal.limits.requests_per_minute), Charge()
        grant = await self._take(principal.key_id, limits, nothing)
        self._limiter.settle(Use(principal.key_id, limits, grant, nothing, nothing))
        return rate_headers(grant)

    def settle(self, principal: Principal, model: str, grant: Grant, prompt_tokens: int, output_tokens: int) -> None:
        """For `Lease` alone. The places are always freed; if the rest fails, the charge stays."""
        taken = grant.charged
        try:
            used = self._keyring.prices.taken(model, prompt_tokens, output_tokens)
            self.counts.use(principal.key_id, tokens=used.tokens, nano_usd=used.nano_usd)
            taken = used if principal.limits.usd_per_day is not None else Charge(used.tokens)
        finally:
            self._limiter.settle(Use(principal.key_id, principal.limits, grant, grant.charged, taken))

    def limited(self) -> list[Principal]:
        """The keys of the file that are valid now and have limits."""
        return self._ring.limited(self._clock()) if self._ring is not None else []

    def local_usage(self, principal: Principal) -> InUse:
        """The usage of `principal` within the limits of this process."""
        return self._limiter.local.usage(principal.key_id, principal.limits)

    def local_limits(self, principal: Principal) -> Limits:
        """The limits of `principal` in this process, which may be one of several."""
        return self._limiter.local.share(principal.limits)

    async def shared_usage(self, principals: Sequence[Principal]) -> Sequence[InUse] | None:
        """The usage of each principal within the limits that all replicas share; None if they share none, or Redis is
        unreachable."""
        shared = self._limiter.shared
        if shared is None:
            return None
        return await shared.usage([(principal.key_id, principal.limits) for principal in principals])

    def status(self) -> AccessStatus:
        shared = self._limiter.shared
        return AccessStatus(
            keys=len(self._ring) if self._ring is not None else 0,
            denied=dict(self.counts.denied),
            used=dict(self.counts.used),
            decided=dict(self.counts.decided),
            shared=shared.connected if shared is not None else None,
        )

    @property
    def _keyring(self) -> Keyring:
        if self._ring is None:
            raise RuntimeError("the access control has not been entered")
        return self._ring

    def _authenticate(self, authorization: str | None) -> Principal:
        if not authorization:
            raise NotAuthenticated(_MISSING)
        scheme = _BEARER.match(authorization)
        if scheme is None:
            raise NotAuthenticated(INCORRECT)
        text, now_s = authorization[scheme.end() :], self._clock()
        if text.startswith(PREFIX) or self._tokens is None:
            return self._keyring.authenticate(text, now_s)
        return self._tokens.authenticate(text, now_s)

    async def _take(self, key_id: str, limits: Limits, charge: Charge) -> Grant:
        verdict = await self._limiter.admit(key_id, limits, charge)
        if isinstance(verdict, Refusal):
            self.counts.denied[verdict.limit] += 1
            raise limit_reached(verdict, charge)
        if not limits.is_open:
            self.counts.decided["redis" if verdict.shared else "local"] += 1
        return verdict

    def _forbid(self, what: str) -> Forbidden:
        self.counts.denied["forbidden"] += 1
        return Forbidden(f"This key may not send '{what}'.")

    def _swap(self, ring: Keyring) -> None:
        """Puts a new version of the file in force. The issuer's keys are kept if their location is unchanged."""
        self._ring = ring
        self._on_reload(len(ring))
        old, config = self._tokens, ring.jwt
        if config == (old.config if old is not None else None):
            return
        self._tokens = _tokens(config, old) if config is not None else None
        if old is not None and self._tokens is not None and old.jwks is self._tokens.jwks:
            return
        if self._jwks_task is not None:
            self._jwks_task.cancel()
        self._jwks_task = self._start(self._tokens.jwks.run()) if self._tokens is not None else None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _tokens(config: Jwt, old: Tokens | None) -> Tokens:
    """The library for tokens is imported only if tokens are configured."""
    from slipstream_gateway.access.jwks import Jwks
    from slipstream_gateway.access.tokens import Tokens

    kept = old is not None and old.config.jwks == config.jwks
    return Tokens(config, old.jwks if old is not None and kept else Jwks(config.jwks))
