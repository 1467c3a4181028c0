"""Tokens of an issuer as callers: real signatures, the issuer's keys by real HTTP and from a file."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from slipstream_core.errors import Forbidden, NotAuthenticated, UpstreamUnavailable
from slipstream_gateway.access import KeyedAccess, KeyFile, Limiter, LocalLimits
from slipstream_gateway.access.jwks import LIFE_S, MAX_BYTES, Jwks, parse_keys

from tests.support.http_server import Asked, Reply, answering
from tests.support.polling import soon

pytestmark = pytest.mark.integration

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    found: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**found, "kid": kid, "use": "sig", **more}


def claims(**changed: Any) -> dict[str, Any]:
    now_s = int(time.time())
    given = {"iss": "https://issuer", "aud": "slipstream", "sub": "ann", "exp": now_s + 600, "groups": ["ml", "all"]}
    return {name: value for name, value in {**given, **changed}.items() if value is not None}


def token(key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers={"kid": kid} if kid else None)


def signed(head: dict[str, Any]) -> str:
    """A token with exactly this header, however strange it is."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    text = f"{part(json.dumps(head).encode())}.{part(json.dumps(claims()).encode())}"
    return f"{text}.{part(RSA.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


class Issuer(contextlib.ExitStack):
    """An issuer's JWK set by HTTP until it is closed; `answers` counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[dict[str, Any]] = [jwk(RSA, "one"), jwk(EC, "ec")]
        self.location: str | None = None
        self.answers = 0
        self.url = f"{self.enter_context(answering(self._answer))}/jwks"

    def _answer(self, _: Asked) -> Reply:
        self.answers += 1
        body = json.dumps({"keys": self.keys}).encode()
        return Reply(302, body, {"location": self.location}) if self.location else Reply(200, body)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


RULES = [
    {"claim": "groups", "value": "ml", "scopes": {"models": ["acme"]}, "priority": "high"},
    {"claim": "realm.roles", "value": "ops", "scopes": {"admin": True}},
    {"claim": "scope", "value": "llm", "limits": {"requests_per_minute": 1}},
]


@pytest.fixture
async def access(tmp_path: Path, async_exit_stack: AsyncExitStack) -> Callable[..., Any]:
    """Starts gates for an issuer's keys at a location."""

    async def start(location: str, **options: Any) -> KeyedAccess:
        path = tmp_path / "keys.json"
        config = {"issuer": "https://issuer", "audiences": ["slipstream"], "jwks": location, "rules": RULES}
        path.write_text(json.dumps({"jwt": {"algorithms": ["RS256", "ES256"], **config, **options}}))
        started = KeyedAccess(KeyFile(path, None), Limiter(LocalLimits()), most_arriving=8)
        return await async_exit_stack.enter_async_context(started)

    return start


async def opened(access: KeyedAccess, text: str) -> Any:
    """The principal, as soon as the issuer's keys are here."""
    return await soon(lambda: access.authenticate(f"Bearer {text}"), "the issuer's keys", ignoring=UpstreamUnavailable)


async def test_claims_become_scopes_priority_and_limits(issuer: Issuer, access: Callable[..., Any]) -> None:
    running = await access(issuer.url)
    member = await opened(running, token())
    assert (member.models.fullmatch("acme") is not None, member.may_use("other")) == (True, False)
    assert (member.caller.priority, member.is_admin) == ("high", False)
    assert member.key_id.startswith("jwt-")
    assert "ann" not in member.key_id
    assert running.authenticate(f"Bearer {token(groups=None, realm={'roles': ['ops']})}").is_admin
    reader = running.authenticate(f"Bearer {token(EC, 'ec', 'ES256', groups='x', scope='openid llm')}")
    assert reader.limits.requests_per_minute == 1
    assert reader.key_id == member.key_id  # whoever it is, not what the token says of them
    with pytest.raises(Forbidden):
        running.authenticate(f"Bearer {token(groups=['mlx', 'no'], scope='llmx')}")


async def test_nothing_but_a_good_token_of_the_issuer_opens(issuer: Issuer, access: Callable[..., Any]) -> None:
    issuer.keys += [jwk(WEAK_RSA, "weak"), jwk(OTHER_RSA, "enc", use="enc"), jwk(OTHER_RSA, "pss", alg="PS256")]
    issuer.keys.append({"kty": "oct", "k": "c2VjcmV0", "kid": "shared"})
    running = await access(issuer.url)
    good = token()
    await opened(running, good)
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, payload, signature = good.split(".")
    none = jwt.encode(claims(), None, algorithm="none", headers={"kid": "one"})
    now_s = int(time.time())
    for bad in (
        none,
        f"{head}.{payload}.",
        f"{head}.{payload}.{signature[:-4]}AAAA",
        f"{none.split('.')[0]}.{payload}.{signature}",
        _signed_by_secret(public),
        token(OTHER_RSA),
        token(OTHER_RSA, "enc"),
        token(OTHER_RSA, "pss"),
        token(WEAK_RSA, "weak"),
        token(kid=None),
        token(kid="shared"),
        token(algorithm="PS256"),
        token(algorithm="RS512"),
        token(iss="https://other"),
        token(iss=None),
        token(aud="other"),
        token(aud=None),
        token(sub=None),
        token(exp=now_s - 60),
        token(exp=None),
        token(nbf=now_s + 60),
        token(exp=10**400),
        token(exp=float("inf")),
        token(exp=253_402_300_800),
        token(nbf=float("inf")),
        token(iat=float("inf")),
        good + "A" * 9000,
        f"{good} ",
        f"{good},{good}",
        "a.b.c",
        "..",
        "é.é.é",
    ):
        with pytest.raises(NotAuthenticated):
            running.authenticate(f"Bearer {bad}")
    assert running.authenticate(f"Bearer {token(exp=now_s - 10)}")  # within the leeway


HEAD = {"alg": "RS256", "kid": "one"}


async def test_a_token_of_another_type_is_no_key(issuer: Issuer, access: Callable[..., Any]) -> None:
    running = await access(issuer.url)
    await opened(running, token())
    for kind in ("JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"):
        assert running.authenticate(f"Bearer {signed({**HEAD, 'typ': kind})}")
    assert running.authenticate(f"Bearer {signed(HEAD)}")
    for head in (
        *({"typ": kind} for kind in ("logout+jwt", "dpop+jwt", "secevent+jwt", "at+jwt ", "", 7, None, ["JWT"])),
        {"crit": ["exp"]},
        {"crit": ["b64"], "b64": True},
        {"crit": []},
        {"b64": True},
    ):
        with pytest.raises(NotAuthenticated):
            running.authenticate(f"Bearer {signed({**HEAD, **head})}")
    with pytest.raises(NotAuthenticated):  # a logout token whose issuer does not say its type
        running.authenticate(f"Bearer {token(events={'http://schemas.openid.net/event/backchannel-logout': {}})}")


def _signed_by_secret(public: bytes) -> str:
    """The issuer's public key as an HMAC secret, which the library itself refuses to sign with."""
    import hashlib
    import hmac

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    body = f"{part(json.dumps({'alg': 'HS256', 'kid': 'one'}).encode())}.{part(json.dumps(claims()).encode())}"
    return f"{body}.{part(hmac.digest(public, body.encode(), hashlib.sha256))}"


async def test_rotated_keys_are_found_and_withdrawn_ones_forgotten(
    issuer: Issuer, access: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream_gateway.access.jwks.RETRY_S", 0.05)
    running = await access(issuer.url)
    old = token()
    await opened(running, old)
    issuer.keys = [jwk(OTHER_RSA, "two")]
    new = token(OTHER_RSA, "two")
    # An unknown key id starts another look at the issuer's keys in the background.
    await soon(lambda: running.authenticate(f"Bearer {new}"), "the new key", ignoring=NotAuthenticated)
    with pytest.raises(NotAuthenticated):
        running.authenticate(f"Bearer {old}")  # although it was good a moment ago


async def test_redirects_are_not_followed_and_until_there_are_keys_it_says_so(
    issuer: Issuer, access: Callable[..., Any]
) -> None:
    with Issuer() as other:
        issuer.location = other.url
        running = await access(issuer.url)
        assert not await Jwks(issuer.url).refresh()
        with pytest.raises(UpstreamUnavailable):
            running.authenticate(f"Bearer {token()}")
        assert (issuer.answers > 0, other.answers) == (True, 0)


async def test_keys_in_a_file_will_do(tmp_path: Path, access: Callable[..., Any]) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    assert (await opened(await access(str(path)), token())).may_use("acme")


async def test_file_of_an_issuers_keys_is_looked_for_beside_the_file_that_names_it(
    tmp_path: Path, access: Callable[..., Any]
) -> None:
    (tmp_path / "issuer").mkdir()
    (tmp_path / "issuer" / "jwks.json").write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    assert (await opened(await access("issuer/jwks.json"), token())).may_use("acme")


async def test_an_issuers_keys_are_read_from_no_fifo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "jwks.json"
    os.mkfifo(path)
    assert not await Jwks(str(path)).refresh()
    assert f"{path}: " in caplog.text
    assert "it is a FIFO, a regular file is needed" in caplog.text


async def test_an_issuer_that_cannot_be_used_is_logged_with_the_reason(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a proxy of the environment is not used
    keys = Jwks(issuer.url)
    assert await keys.refresh()
    issuer.keys = [jwk(RSA, "one"), {"padding": "x" * MAX_BYTES}]
    assert not await keys.refresh()
    assert f"it answers more than {MAX_BYTES} bytes" in caplog.text
    issuer.keys = []
    assert not await keys.refresh()
    assert "it contains no public key for signatures" in caplog.text
    issuer.close()
    assert not await keys.refresh()
    assert "Connect call failed" in caplog.text or "Connection refused" in caplog.text
    assert keys.find("one") is not None  # the last good keys stay


async def test_keys_that_could_not_be_read_again_are_used_for_a_day(tmp_path: Path) -> None:
    now_s, path = 1000.0, tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    keys = Jwks(str(path), clock=lambda: now_s)
    assert not keys.is_ready
    assert await keys.refresh()
    path.unlink()
    assert not await keys.refresh()
    now_s += LIFE_S - 1.0
    assert keys.is_ready
    now_s += 2.0
    assert not keys.is_ready


def test_a_private_key_is_not_used() -> None:
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA))
    with pytest.raises(ValueError, match="no public key"):
        parse_keys(json.dumps({"keys": [private]}).encode())
