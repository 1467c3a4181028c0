"""Access control as the endpoints use it, and the implementation without keys."""

from __future__ import annotations

from typing import Protocol

from slipstream_core.errors import Forbidden
from slipstream_core.types import ANONYMOUS, GenerationRequest

from slipstream_gateway.access import Principal
from slipstream_gateway.access.records import Scopes
from slipstream_gateway.api.http import Scope, read_headers
from slipstream_gateway.api.port_router import RequestCheck, allow_all


class Lease(Protocol):
    """The limits that an admitted request holds. `headers` inform the client of its limits and remainders."""

    headers: tuple[tuple[bytes, bytes], ...]

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Corrects the charge to the tokens that the request used, once. None: unknown. An unknown prompt is charged at
        its maximum number of tokens, an unknown answer at the requested number."""
        ...


class AccessControl(Protocol):
    """The methods are called in this order: `authenticate` before the body is read, the others after it is parsed.

    `is_open`: no keys are configured, every request is permitted, and clients' `authorization` headers are for the
    upstreams.
    """

    @property
    def is_open(self) -> bool: ...

    def authenticate(self, authorization: str | None) -> Principal: ...

    def authorize(self, principal: Principal, request: GenerationRequest) -> None: ...

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease: ...

    async def charge_request(self, principal: Principal) -> tuple[tuple[bytes, bytes], ...]:
        """Used instead of `admit` for a request that runs no generation: it counts as a request and holds no place."""
        ...


class _NoLease:
    """Holds nothing, so settling has no effect."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        pass


_ANYBODY = Principal(key_id="", caller=ANONYMOUS, scopes=Scopes(admin=True))
_NO_LEASE = _NoLease()


class OpenAccess:
    """Access without keys: every request is permitted, and none is counted."""

    is_open = True

    def authenticate(self, authorization: str | None) -> Principal:
        return _ANYBODY

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
