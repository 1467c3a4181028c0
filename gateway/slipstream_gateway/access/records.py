"""The key file: callers and their permissions as JSON, written by `slipstream keys` and followed by the gateway.

    {"version": 1,
     "pepper": "<its id>",
     "keys": [{"id": …, "name": …, "hash": …, "scopes": {…}, "priority": …, "limits": {…}, …}],
     "prices": [{"models": "*", "input_usd_per_million_tokens": 0.1, "output_usd_per_million_tokens": 0.4}],
     "jwt": {"issuer": …, "audiences": […], "jwks": …, "rules": […]}}

An unknown field is an error, because it may be a limit with a typo.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from slipstream_core.errors import CommandError
from slipstream_core.hosts import is_loopback_address
from slipstream_core.parameter_names import suggestion
from slipstream_core.rate_limits import Limits
from slipstream_core.restricted_parameters import Restricted
from slipstream_core.types import Mode, Priority

from slipstream_gateway.access.key_text import ID_CHARS

MAX_FILE_BYTES = 16 * 1024 * 1024
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric algorithms only: with a shared secret every verifier of tokens could also issue them."""
_Name = Annotated[str, Meta(max_length=128)]
_Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_KeyId = Annotated[str, Meta(pattern=f"^[a-z0-9]{{{ID_CHARS}}}$")]
_WRONG_PARAMETER = re.compile(r"Invalid enum value '([^']*)' .*\.parameters\[")
_Usd = Annotated[float, Meta(ge=0, le=1e6)]


class Scopes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The permissions of a caller. `models` are names or globs (`team-a/*`); `modes` are the permitted values of
    `x-slipstream-mode` besides `auto`; `draft_length` and `learn` permit those headers; `parameters` are the restricted
    parameters that it may send; `state` are ids or globs of stored state that it may name besides its own responses;
    `admin` permits the admin paths."""

    models: tuple[_Name, ...] = ("*",)
    modes: tuple[Mode, ...] = (Mode.SPECULATIVE, Mode.PLAIN)
    draft_length: bool = True
    learn: bool = True
    parameters: tuple[Restricted, ...] = ()
    state: tuple[_Name, ...] = ()
    admin: bool = False


class Former(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The hash of a rotated key, valid until an instant."""

    hash: _Hash
    until: datetime


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key. Revoked keys stay in the file, so that old lists and logs can be resolved."""

    id: _KeyId
    name: _Name = ""
    hash: _Hash
    created: datetime
    expires: datetime | None = None
    revoked: datetime | None = None
    former: Former | None = None
    scopes: Scopes = Scopes()
    priority: Priority = Priority.NORMAL
    limits: Limits = Limits()


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The token prices of some models; the first entry that matches a model applies."""

    models: _Name = "*"
    input_usd_per_million_tokens: _Usd
    output_usd_per_million_tokens: _Usd


class JwtRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The permissions of tokens whose claim `claim` equals `value` or, as a list or as words (like `scope`), contains
    it."""

    claim: _Name
    value: str
    scopes: Scopes = Scopes()
    priority: Priority = Priority.NORMAL
    limits: Limits = Limits()


class Jwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bearer tokens of an OpenID provider (RFC 7519, RFC 8725). `jwks` is an https URL (http on the loopback) or a
    file. The first of `rules` that matches a token applies; a token without a match has no permissions."""

    issuer: str
    audiences: Annotated[tuple[str, ...], Meta(min_length=1)]
    jwks: str
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("RS256",)
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    rules: Annotated[tuple[JwtRule, ...], Meta(min_length=1)]


class AccessFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The whole file. `pepper` is the id of the hashes' pepper; empty without keys."""

    version: Literal[1] = 1
    pepper: str = ""
    keys: tuple[KeyRecord, ...] = ()
    prices: tuple[Price, ...] = ()
    jwt: Jwt | None = None


def parse_access(data: bytes, *, name: str) -> AccessFile:
    """Raises `CommandError` with one line that has the file and the field, never a hash."""
    if len(data) > MAX_FILE_BYTES:
        raise CommandError(f"{name}: exceeds {MAX_FILE_BYTES} bytes.")
    try:
        file = msgspec.json.decode(data, type=AccessFile)
    except msgspec.ValidationError as exc:
        raise CommandError(f"{name}: {exc} {_hint(str(exc))}".rstrip()) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise CommandError(f"{name}: not valid JSON: {exc}") from exc
    try:
        problem = next(_problems(file), None)
    except CommandError as exc:
        problem = str(exc)
    if problem is not None:
        raise CommandError(f"{name}: {problem}")
    return file


def render_access(file: AccessFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def aware(instant: datetime) -> datetime:
    """An instant without a time zone is in UTC."""
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant


def check_location(location: str) -> bool:
    """Whether a location of an issuer's keys is a URL; else it is a file. Raises `CommandError` for a URL that is not
    trusted: keys are fetched by https, or by http on the loopback."""
    if "://" not in location:
        return False
    try:
        url = urlsplit(location)
        host, _ = url.hostname or "", url.port
    except ValueError as exc:
        raise CommandError(f"jwt.jwks: {location!r} is no URL: {exc}") from exc
    if url.username is not None or url.password is not None:
        raise CommandError("jwt.jwks: the URL has credentials; keys of an issuer are public.")
    is_local = host == "localhost" or is_loopback_address(host)
    if (url.scheme == "https" and host) or (url.scheme == "http" and is_local):
        return True
    raise CommandError(f"jwt.jwks: must be an https URL (http on the loopback alone) or a file, is {location!r}.")


def _hint(problem: str) -> str:
    """A question about a misspelt parameter in `scopes.parameters`; empty for other problems."""
    wrong = _WRONG_PARAMETER.search(problem)
    return "" if wrong is None else suggestion(wrong[1], list(Restricted))


def _problems(file: AccessFile) -> Iterator[str]:
    for key_id, count in Counter(key.id for key in file.keys).items():
        if count > 1:
            yield f"keys: the id {key_id} occurs {count} times."
    if file.keys and not file.pepper:
        yield "pepper: is required, because there are keys that were hashed under one."
    if file.jwt is not None:
        check_location(file.jwt.jwks)
    rights = [(f"keys {key.id}", key.limits) for key in file.keys]
    rights += [(f"jwt.rules[{i}]", rule.limits) for i, rule in enumerate(file.jwt.rules if file.jwt else ())]
    priced = any(price.models == "*" for price in file.prices)
    for where, limits in rights:
        yield from (f"{where}: {problem}" for problem in _bad_limits(limits))
        if limits.usd_per_day is not None and not priced:
            yield f"{where}: usd_per_day requires prices, one of them for models '*'."


def _bad_limits(limits: Limits) -> Iterator[str]:
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
        value = getattr(limits, name)
        if value is not None and not 1 <= value <= 1_000_000_000:
            yield f"limits.{name} must be between 1 and 1000000000, got {value}."
    if limits.usd_per_day is not None and not 0 < limits.usd_per_day <= 1e6:
        yield f"limits.usd_per_day must be above 0 and at most 1000000, got {limits.usd_per_day:g}."
