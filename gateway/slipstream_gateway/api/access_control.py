"""Access control as the endpoints use it; access without keys, which on the loopback is for programs and pages of this
machine (`own_site`); and the bill: the tokens that a request is charged for in the end, the known ones, else the
requested ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from slipstream_core.errors import Forbidden, shorten
from slipstream_core.hosts import is_loopback_address, without_port
from slipstream_core.types import ANONYMOUS, GenerationRequest

from slipstream_gateway.access import Principal
from slipstream_gateway.access.records import Scopes
from slipstream_gateway.api.http import Scope, read_headers
from slipstream_gateway.api.port_router import RequestCheck, allow_all
from slipstream_gateway.request.call import Call
from slipstream_gateway.upstreams.base import Usage


class Lease(Protocol):
    """The limits that an admitted request holds. `headers` inform the client of its limits and remainders.
    `may_name_state`: the ids of a stored answer are to be noted with `own`."""

    headers: tuple[tuple[bytes, bytes], ...]

    @property
    def may_name_state(self) -> bool: ...

    async def own(self, state_ids: Sequence[str]) -> None: ...

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Corrects the charge to the tokens that the request used, once. None: unknown. An unknown prompt is charged at
        its maximum number of tokens, an unknown answer at the requested number."""
        ...


class AccessControl(Protocol):
    """The methods are called in this order: `authenticate` before the body is read, `arriving` around that, the others
    after it is parsed.

    `is_open`: no keys are configured, every request is permitted, and clients' `authorization` headers are for the
    upstreams.
    """

    @property
    def is_open(self) -> bool: ...

    def authenticate(self, authorization: str | None) -> Principal: ...

    def arriving(self, principal: Principal) -> AbstractContextManager[None]: ...

    def authorize(self, principal: Principal, request: GenerationRequest) -> None: ...

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease: ...

    async def charge_request(self, principal: Principal) -> tuple[tuple[bytes, bytes], ...]:
        """Used instead of `admit` for a request that runs no generation: it counts as a request and holds no place."""
        ...


class _NoLease:
    """Holds nothing, so settling has no effect."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    may_name_state = False

    async def own(self, state_ids: Sequence[str]) -> None:
        pass

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        pass


_ANYBODY = Principal(key_id="", caller=ANONYMOUS, scopes=Scopes(admin=True))
_NO_LEASE = _NoLease()
_UNBOUNDED = nullcontext()


class OpenAccess:
    """Access without keys: every request is permitted, and none is counted."""

    is_open = True

    def authenticate(self, authorization: str | None) -> Principal:
        return _ANYBODY

    def arriving(self, principal: Principal) -> AbstractContextManager[None]:
        return _UNBOUNDED  # callers cannot be distinguished

    def authorize(self, principal: Principal, request: GenerationRequest) -> None:
        pass

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease:
        return _NO_LEASE

    async def charge_request(self, principal: Principal) -> tuple[tuple[bytes, bytes], ...]:
        return ()


OPEN_ACCESS = OpenAccess()


def admin_check(access: AccessControl, site: RequestCheck = allow_all) -> RequestCheck:
    """A check that passes requests of admins that also pass `site`. It raises `NotAuthenticated` or `Forbidden`."""

    async def check(scope: Scope) -> None:
        await site(scope)
        require_admin(access, scope)

    return check


def require_admin(access: AccessControl, scope: Scope) -> Principal:
    """The admin who sent a request. Raises `NotAuthenticated` or `Forbidden`."""
    principal = access.authenticate(read_headers(scope).authorization)
    if not principal.is_admin:
        raise Forbidden("This key has no admin permission.")
    return principal


# With these a server may generate tokens that do not appear in the answer's text, such as special tokens.
_UNSEEN = frozenset(
    {"allowed_token_ids", "best_of", "ignore_eos", "include_reasoning", "logit_bias", "use_beam_search"}
)


class Bill(NamedTuple):
    """Numbers of tokens; None if unknown."""

    prompt_tokens: int | None
    output_tokens: int | None


_NOTHING = Bill(0, 0)


def bill_of(call: Call, *, client_waited: bool) -> Bill:
    """The bill of a finished call. `client_waited` is False if the client left before its answer; a server may have
    worked on the answer nevertheless."""
    if not call.was_sent:
        return _NOTHING
    if call.has_begun:
        usage = call.usage
        return Bill(usage.prompt_tokens or None, _output_tokens(call.request, usage))
    if client_waited:
        return _NOTHING
    seen = call.request.stream and not _hides_tokens(call.request)
    return Bill(None, 0 if seen else None)


def _output_tokens(request: GenerationRequest, usage: Usage) -> int | None:
    """The output tokens of an answer that has begun, as far as it was received."""
    if usage.exact:
        return usage.most_output_tokens
    if _hides_tokens(request):
        return None
    limit = request.max_tokens
    return usage.most_output_tokens if limit is None else min(usage.most_output_tokens, limit * request.choices)


def _hides_tokens(request: GenerationRequest) -> bool:
    return not _UNSEEN.isdisjoint(request.features)


def own_site(bound: str) -> RequestCheck:
    """A check for a listener on the loopback address or name `bound`. It raises `Forbidden`.

    `Host` must be `bound`, another loopback address, or `localhost`: a page of another site may let its own name
    resolve to this machine (DNS rebinding), but its browser still sends that name in `Host`. `Origin`, which browsers
    send with a page's POST requests, must be a page of such a host. Programs send no `Origin`, and HTTP/1.0 clients no
    `Host`.
    """
    names = ("localhost", bound.lower())

    @lru_cache(maxsize=64)
    def is_own(host: str) -> bool:
        return host in names or is_loopback_address(host)

    async def check(scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"host" and not is_own(without_port(sent := value.decode("latin-1"))):
                ways = "a loopback address of this machine or 'localhost'"
                raise Forbidden(f"Invalid header 'host': without API keys, expected {ways}, got '{shorten(sent)}'.")
            if name == b"origin" and not is_own(_host_of(sent := value.decode("latin-1"))):
                what = "without API keys, requests from pages of other sites are refused"
                raise Forbidden(f"Invalid header 'origin': {what}, got '{shorten(sent)}'.")

    return check


def _host_of(origin: str) -> str:
    """The host of an origin; empty if it has none, such as `null`."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
