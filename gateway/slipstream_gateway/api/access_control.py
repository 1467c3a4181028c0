"""Who may use the endpoints: the gate as they see it, and the one that is always open."""

from __future__ import annotations

from typing import Protocol

from slipstream_core.errors import Forbidden
from slipstream_core.types import ANONYMOUS, GenerationRequest

from slipstream_gateway.access import Principal
from slipstream_gateway.access.records import Scopes
from slipstream_gateway.api.http import Scope, read_headers
from slipstream_gateway.api.port_router import RequestCheck, anybody


class Lease(Protocol):
    """What an admitted request holds. `headers` tell the client where it stands."""

    headers: tuple[tuple[bytes, bytes], ...]

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Corrects the charge by the tokens that the request took, once. None: unknown. An unknown prompt counts with
        the most tokens that it can have, an unknown answer with all that was asked for."""
        ...


class AccessControl(Protocol):
    """Asked in this order: `authenticate` before the body is read, the others when it is understood.

    `is_open`: anybody may do anything, and what clients send as `authorization` is the upstreams' business.
    """

    @property
    def is_open(self) -> bool: ...

    def authenticate(self, authorization: str | None) -> Principal: ...

    def authorize(self, principal: Principal, request: GenerationRequest) -> None: ...

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease: ...

    async def ask(self, principal: Principal) -> tuple[tuple[bytes, bytes], ...]:
        """In the place of `admit` for what runs nothing: it counts as a request, and holds no place."""
        ...


class _NoLease:
    """Nothing is held, so there is nothing to give back."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def settle(self, prompt_tokens: int | None, output_tokens: int | None) -> None:
        pass


_ANYBODY = Principal(key_id="", caller=ANONYMOUS, scopes=Scopes(admin=True))
_NO_LEASE = _NoLease()


class OpenAccess:
    """No keys: everybody is let in, and nobody is counted."""

    is_open = True

    def authenticate(self, authorization: str | None) -> Principal:
        return _ANYBODY

    def authorize(self, principal: Principal, request: GenerationRequest) -> None:
        pass

    async def admit(self, principal: Principal, request: GenerationRequest) -> Lease:
        return _NO_LEASE

    async def ask(self, principal: Principal) -> tuple[tuple[bytes, bytes], ...]:
        return ()


OPEN_ACCESS = OpenAccess()


def admin_check(access: AccessControl, site: RequestCheck = anybody) -> RequestCheck:
    """A check that lets admins pass whose request `site` lets pass. It raises `NotAuthenticated` or `Forbidden`."""

    async def check(scope: Scope) -> None:
        await site(scope)
        require_admin(access, scope)

    return check


def require_admin(access: AccessControl, scope: Scope) -> Principal:
    """The admin that a request comes from. Raises `NotAuthenticated` or `Forbidden`."""
    principal = access.authenticate(read_headers(scope).authorization)
    if not principal.is_admin:
        raise Forbidden("This key is not an admin's.")
    return principal
