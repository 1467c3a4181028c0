"""Keys and JSON Web Tokens that are right, and those that must not pass for them (RFC 8725; PortSwigger's list of JWT
attacks)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from slipstream_gateway.access.key_text import checksum, digest, new_key, pepper_id
from slipstream_gateway.access.records import AccessFile, Former, Jwt, JwtRule, KeyRecord, Scopes, render_access

ISSUER, AUDIENCE, KID = "https://issuer.example", "slipstream", "key-1"


class Secrets(NamedTuple):
    """The texts that open something: a user's key, an admin's, and what signs tokens. The others do not any more."""

    user: str
    admin: str
    revoked: str
    expired: str
    rotated: str
    signer: rsa.RSAPrivateKey
    file: Path


def write_keys(folder: Path) -> Secrets:
    """A file of keys with its pepper and the issuer's key set beside it."""
    pepper, now = secrets.token_hex(32).encode(), datetime.now(UTC)
    texts = {name: new_key() for name in ("user", "admin", "revoked", "expired", "rotated")}
    more: dict[str, dict[str, Any]] = {
        "admin": {"scopes": Scopes(admin=True)},
        "revoked": {"revoked": now},
        "expired": {"expires": now - timedelta(minutes=1)},
        "rotated": {"hash": "0" * 64},
    }
    records = []
    for name, key in texts.items():
        stored = digest(pepper, key.text).hex()
        if name == "rotated":
            more[name]["former"] = Former(hash=stored, until=now - timedelta(minutes=1))
        records.append(KeyRecord(**{"id": key.id, "name": name, "hash": stored, "created": now, **more.get(name, {})}))
    signer = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(signer.public_key())), "kid": KID, "use": "sig"}
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public]}))
    rule = JwtRule(claim="groups", value="admins", scopes=Scopes(admin=True))
    rules = Jwt(issuer=ISSUER, audiences=(AUDIENCE,), jwks=str(jwks), rules=(rule,))
    file = folder / "keys.json"
    file.write_bytes(render_access(AccessFile(pepper=pepper_id(pepper), keys=tuple(records), jwt=rules)))
    file.with_name("keys.json.pepper").write_bytes(pepper)
    return Secrets(*(texts[name].text for name in ("user", "admin", "revoked", "expired", "rotated")), signer, file)


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": AUDIENCE, "sub": "x", "exp": int(time.time()) + 600, "groups": ["admins"], **more}


def good_token(known: Secrets) -> str:
    return jwt.encode(claims(), known.signer, algorithm="RS256", headers={"kid": KID})


def wrong_keys(known: Secrets) -> Iterator[tuple[str, str]]:
    """Keys that open nothing, by what is wrong with them."""
    key = known.user
    body = key[:-6]
    other = "b" if body[-1] == "a" else "a"
    yield from (("revoked key", known.revoked), ("expired key", known.expired), ("rotated key", known.rotated))
    yield from (("no key", ""), ("a space", " "), ("null", "null"), ("undefined", "undefined"), ("star", "*"))
    yield "unknown key", new_key().text
    yield "another secret of the same id", body[:-1] + other + checksum(body[:-1] + other)
    yield "one character off", key[:30] + ("a" if key[30] != "a" else "b") + key[31:]
    yield from (
        ("cut short", key[:-1]),
        ("one more character", key + "a"),
        ("twice", key + key),
        ("id alone", key[:18]),
    )
    yield from (("upper case", key.upper()), ("lower case", key.lower()), ("reversed", key[::-1]))
    yield from (
        ("list", f"{known.revoked},{key}"),
        ("words", f"x {key}"),
        ("quoted", f'"{key}"'),
        ("percent", f"{key}%00"),
    )
    yield from (("no-break space", "\xa0" + key), ("Latin-1", "\xff" * 20), ("stored hash", digest(b"", key).hex()))
    yield from (("SQL", "' OR 1=1 --"), ("long", "sk-slip-" + "a" * 20_000), ("glob", "sk-slip-*"), ("regex", ".*"))
    yield "homoglyph", key.replace("sk-", "\xb5k-")


def wrong_tokens(known: Secrets) -> Iterator[tuple[str, str]]:
    """Tokens that open nothing: what each says would make its bearer an admin."""
    public = known.signer.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    own = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(stranger.public_key()))
    good = good_token(known)
    head, body, signature = good.split(".")

    def signed(head: dict[str, Any] | None = None, **more: Any) -> str:
        # Not `jwt.encode`, which refuses to make some of them.
        text = json.dumps(claims(**more)).encode()
        return jwt.api_jws.encode(text, known.signer, algorithm="RS256", headers={"kid": KID, **(head or {})})

    for name in ("none", "None", "NONE", "nOnE", ""):
        yield f"alg {name!r}", f"{_part({'alg': name, 'kid': KID})}.{_part(claims())}."
        yield f"alg {name!r} with a signature", f"{_part({'alg': name, 'kid': KID})}.{_part(claims())}.{signature}"
    for secret in (public, b"", b"secret", KID.encode(), own["n"].encode()):
        for algorithm in ("HS256", "HS512"):
            yield f"{algorithm} under {secret[:10]!r}", _hmac_token(algorithm, secret)
    for head_of in (
        *(
            {"kid": kid}
            for kid in ("", "../../../../dev/null", "/dev/null", "key-1' UNION SELECT 'a", "key-2", "key-1\0")
        ),
        *({"kid": KID, "jwk": own}, {"jwk": own}, {"kid": KID, "jku": "https://evil.example/jwks.json"}),
        *({"kid": KID, "x5u": "https://evil.example/x"}, {"kid": KID, "x5c": ["AAAA"]}),
    ):
        yield f"a stranger's, {head_of}"[:60], jwt.encode(claims(), stranger, algorithm="RS256", headers=head_of)
    for odd in ([], {}, 1, None, True, ["key-1"]):
        yield f"kid {odd!r}", f"{_part({'alg': 'RS256', 'kid': odd})}.{body}.{signature}"
    yield "another body", f"{head}.{_part(claims(sub='y'))}.{signature}"
    yield "no signature", f"{head}.{body}."
    yield "signature cut short", good[:-8]
    yield "three empty parts", ".."
    yield "critical extension", signed({"crit": ["exp"], "exp": 1})
    yield "unencoded body", signed({"b64": False, "crit": ["b64"]})
    yield "PS256 where RS256 is due", jwt.encode(claims(), known.signer, algorithm="PS256", headers={"kid": KID})
    yield "deep head", f"{base64.urlsafe_b64encode(b'[' * 3000).decode().rstrip('=')}.{body}.{signature}"
    now = int(time.time())
    for name, more in {
        "expired": {"exp": now - 3600},
        "not yet": {"nbf": now + 3600},
        "another audience": {"aud": "other"},
        "audience as part": {"aud": "slip"},
        "no audience": {"aud": []},
        "another issuer": {"iss": "https://issuer.example.evil"},
        "issuer with a slash": {"iss": ISSUER + "/"},
        "issuer in a list": {"iss": [ISSUER]},
        "expiry as text": {"exp": "never"},
        "expiry as null": {"exp": None},
        "endless expiry": {"exp": float("inf")},
        "subject as object": {"sub": {}},
        "no group": {"groups": []},
        "group as part": {"groups": ["admins2", "admin"]},
        "group as object": {"groups": {"admins": True}},
    }.items():
        yield name, signed(**more)
    for claim in ("exp", "iss", "aud", "sub"):
        kept = {name: value for name, value in claims().items() if name != claim}
        yield f"without {claim}", jwt.encode(kept, known.signer, algorithm="RS256", headers={"kid": KID})


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _hmac_token(algorithm: str, secret: bytes) -> str:
    text = f"{_part({'alg': algorithm, 'kid': KID, 'typ': 'JWT'})}.{_part(claims())}"
    kind = {"HS256": hashlib.sha256, "HS512": hashlib.sha512}[algorithm]
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), kind)).decode().rstrip("=")
    return f"{text}.{signature}"
