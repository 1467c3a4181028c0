"""JSON Web Tokens of an OpenID provider, verified according to RFC 8725 and mapped to callers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt
from slipstream_core.errors import Forbidden, NotAuthenticated, UpstreamUnavailable

from slipstream_gateway.access.jwks import Jwks
from slipstream_gateway.access.keyring import INCORRECT
from slipstream_gateway.access.principal import Principal, compile_principal
from slipstream_gateway.access.records import Jwt, JwtRule

MAX_TOKEN_CHARS = 8192
MOST_KEPT = 4096
_REQUIRED = ["exp", "iss", "aud", "sub"]
_RETRY_S = 2.0
_TYPES = frozenset({"jwt", "at+jwt"})
_LATEST_EXPIRY_S = 253_402_300_799  # the end of the year 9999


class _Kept(NamedTuple):
    principal: Principal
    until_s: float


class Tokens:
    """Verifies tokens of one issuer. A signature costs some tens of microseconds, so a valid token is cached, by its
    hash alone, until it expires or the issuer's keys change."""

    def __init__(self, config: Jwt, jwks: Jwks) -> None:
        self.config = config
        self.jwks = jwks
        self._kept: dict[bytes, _Kept] = {}
        self._generation = jwks.generation

    def authenticate(self, token: str, now_s: float) -> Principal:
        """The caller of `token`. Raises `NotAuthenticated`; `Forbidden` if no rule matches a valid token;
        `UpstreamUnavailable` until the issuer's keys have been read for the first time."""
        if len(token) > MAX_TOKEN_CHARS or not token.isascii():
            raise NotAuthenticated(INCORRECT)
        if not self.jwks.is_ready:
            raise UpstreamUnavailable("Tokens cannot be verified at present. Try again later.", retry_after_s=_RETRY_S)
        if self._generation != self.jwks.generation:
            self._generation = self.jwks.generation
            self._kept.clear()
        name = hashlib.sha256(token.encode()).digest()
        kept = self._kept.get(name)
        if kept is not None and now_s < kept.until_s:
            return kept.principal
        claims = self._claims(token)
        principal = self._principal(claims)
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[name] = _Kept(principal, float(claims["exp"]) + self.config.leeway_s)
        return principal

    def _claims(self, token: str) -> Mapping[str, Any]:
        """The claims of `token`, after verification."""
        config = self.config
        try:
            header = jwt.get_unverified_header(token)
            kid, algorithm = header.get("kid"), header.get("alg")
            if algorithm not in config.algorithms or not _is_for_access(header):
                raise NotAuthenticated(INCORRECT)
            key = self.jwks.find(kid)
            if key is None or key.algorithm not in (None, algorithm):
                raise NotAuthenticated(INCORRECT)
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                issuer=config.issuer,
                audience=list(config.audiences),
                leeway=config.leeway_s,
                options={"require": _REQUIRED},
            )
            if int(claims["exp"]) > _LATEST_EXPIRY_S or "events" in claims:  # of a security event (RFC 8417)
                raise NotAuthenticated(INCORRECT)
        # PyJWT lets other exceptions through for malformed tokens and for instants out of range.
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as exc:
            raise NotAuthenticated(INCORRECT) from exc
        return claims

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        for rule in self.config.rules:
            if _fits(rule, claims):
                subject = f"{self.config.issuer}\0{claims['sub']}"
                key_id = f"jwt-{hashlib.sha256(subject.encode()).hexdigest()[:16]}"
                return compile_principal(key_id, "", rule.scopes, rule.priority, rule.limits)
        raise Forbidden("This token has no permissions on this gateway.")


def _is_for_access(header: Mapping[str, Any]) -> bool:
    """Whether the header may be that of an access token: its type is absent or one of `_TYPES` (RFC 8725, 3.11), so
    that a logout token of the same issuer is no key, and no extension must be understood (RFC 7515, 4.1.11)."""
    kind = header.get("typ", "JWT")
    is_known = isinstance(kind, str) and kind.lower().removeprefix("application/") in _TYPES
    return is_known and "crit" not in header and "b64" not in header


def _fits(rule: JwtRule, claims: Mapping[str, Any]) -> bool:
    found = _claim(rule.claim, claims)
    if isinstance(found, str):
        return found == rule.value or rule.value in found.split()
    return isinstance(found, list) and rule.value in found


def _claim(path: str, claims: Mapping[str, Any]) -> object:
    """The claim `path`, by its full name (`https://acme.example/groups`) or as a path into nested claims
    (`realm_access.roles`)."""
    if path in claims:
        return claims[path]
    found: object = claims
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
