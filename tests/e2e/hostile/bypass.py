"""Ways around authentication, as bytes: none of them may reach anything that a key guards.

Sources: OWASP's testing guide (authorization bypass), the header and path tricks of reverse proxy research (Orange
Tsai, "Breaking Parser Logic"), request smuggling (RFC 9112, 11.2).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.e2e.hostile.corpus import GOOD, JSON, LIVE, chunked, post, raw
from tests.e2e.hostile.tokens import Secrets, good_token, wrong_keys, wrong_tokens
from tests.e2e.hostile.wire import talk

ADMIN_READS = (b"/metrics", b"/v1/evidence", b"/admin/events")
USER_READS = (b"/v1/models", b"/v1/models/acme")
AT_ONCE = 32
_QUIET_S = 0.5  # a refusal that closes comes before the answers that an attack would like to see


class Attack(NamedTuple):
    """`open` are the answers of 200 that are nobody's secret: those of `/health/live` around the attack."""

    name: str
    data: bytes
    open: int = 0


def get(path: bytes, *fields: bytes) -> bytes:
    return raw(b"GET %b HTTP/1.1" % path, b"host: localhost", *fields)


def bearer(text: str) -> bytes:
    return b"authorization: Bearer " + text.encode("latin-1")


def credentials(known: Secrets) -> Iterator[Attack]:
    """What is no credential, before every kind of thing that is guarded."""
    wrong = [(name, (bearer(text),)) for name, text in (*wrong_keys(known), *wrong_tokens(known))]
    wrong += [("none", ()), *_other_places(known.admin)]
    for name, fields in wrong:
        yield Attack(f"{name}: generation", post(GOOD, *fields))
        yield Attack(f"{name}: models", get(b"/v1/models", *fields))
        yield Attack(f"{name}: route", post(GOOD, *fields, path="/v1/route"))
        yield Attack(f"{name}: metrics", get(b"/metrics", *fields))
        yield Attack(f"{name}: kill", raw(b"DELETE /admin/kills/default/pair HTTP/1.1", b"host: localhost", *fields))


def _other_places(key: str) -> Iterator[tuple[str, tuple[bytes, ...]]]:
    """A good key, where it does not count or where somebody else may have read another one."""
    secret, basic = key.encode(), base64.b64encode(f"admin:{key}".encode())
    yield "as basic", (b"authorization: Basic " + basic,)
    yield "bare", (b"authorization: " + secret,)
    yield "other scheme", (b"authorization: Token " + secret,)
    yield "scheme glued", (b"authorization: Bearer" + secret,)
    yield "scheme in Latin-1", (b"authorization: B\xebarer " + secret,)
    yield "tab after the scheme", (b"authorization: Bearer\t" + secret,)
    yield "two, the first wrong", (b"authorization: Bearer x", b"authorization: Bearer " + secret)
    yield "two, the last wrong", (b"authorization: Bearer " + secret, b"Authorization: Bearer x")
    yield "two equal", (b"authorization: Bearer " + secret,) * 2
    yield "in one line with another", (b"authorization: Bearer x, Bearer " + secret,)
    yield "folded", (b"authorization: Bearer\r\n " + secret,)
    yield "space before the colon", (b"authorization : Bearer " + secret,)
    yield "zero byte", (b"authorization: Bearer " + secret + b"\x00",)
    yield "underscore for a dash", (b"http_authorization: Bearer " + secret,)
    for name in (b"x-api-key", b"api-key", b"proxy-authorization", b"x-authorization", b"x-forwarded-authorization"):
        yield f"as {name.decode()}", (name + b": Bearer " + secret, name + b": " + secret)
    yield "as a cookie", (b"cookie: authorization=Bearer " + secret + b"; api_key=" + secret,)
    for name in (b"x-forwarded-for: 127.0.0.1", b"x-real-ip: 127.0.0.1", b"forwarded: for=127.0.0.1;host=localhost"):
        yield name.decode(), (name, b"x-forwarded-host: localhost", b"x-forwarded-proto: https")
    for name in (b"x-user: admin", b"x-remote-user: admin", b"remote-user: admin", b"x-slipstream-admin: true"):
        yield name.decode(), (name,)


def targets(known: Secrets) -> Iterator[Attack]:
    """No key, and a request target that two routers may read in two ways."""
    tricks: tuple[bytes, ...] = (
        *(b"/%b", b"/.%b", b"//x/..%b", b"/x/..%b", b"/health/live/..%b", b"/health/live/../..%b", b"/health/live;%b"),
        *(
            b"%b/",
            b"%b//",
            b"%b/.",
            b"%b/..",
            b"%b;",
            b"%b;x=y",
            b"%b?",
            b"%b?x",
            b"%b%%00",
            b"%b%%20",
            b"%b%%0a",
            b"%b%%23",
        ),
        *(
            b"%b.json",
            b"%b#",
            b"%b..;/",
            b"http://localhost%b",
            b"http://127.0.0.1:80%b",
            b"https://x%b",
            b"//localhost%b",
        ),
        *(
            b"/health/live?%b",
            b"/health/live#%b",
            b"/health/live%%3f%b",
            b"/health/live%%2f..%%2f..%b",
            b"/%%2e%b",
            b"/%%2e%%2e%b",
        ),
    )
    for path in (*ADMIN_READS, *USER_READS):
        for trick in tricks:
            # A query or a fragment after an open path is that path.
            open_ = trick in (b"/health/live?%b", b"/health/live#%b")
            yield Attack(f"{(trick % path).decode()}", get(trick % path), open=int(open_))
        encoded = b"".join(b"%%%02x" % byte for byte in path[1:])
        for spelled in (
            b"/" + encoded,
            path.upper(),
            path.title(),
            path.replace(b"/", b"%2f"),
            path.replace(b"/", b"\\"),
        ):
            yield Attack(f"spelled {spelled.decode()}", get(spelled))
        yield Attack(f"overlong {path.decode()}", get(path.replace(b"s", b"%c1%b3")))
        yield Attack(f"fullwidth {path.decode()}", get(path.replace(b"m", b"%ef%bd%8d")))
        for name in (b"api_key", b"key", b"access_token", b"authorization", b"token"):
            yield Attack(f"{path.decode()}?{name.decode()}=", get(path + b"?" + name + b"=" + known.admin.encode()))


def overrides() -> Iterator[Attack]:
    """No key, and headers that ask for another path, method or host than the request line's."""
    for path in (*ADMIN_READS, *USER_READS):
        for name in (
            b"x-original-url",
            b"x-rewrite-url",
            b"x-forwarded-path",
            b"x-forwarded-prefix",
            b"x-override-url",
        ):
            yield Attack(f"{name.decode()} {path.decode()}", get(b"/health/live", name + b": " + path), open=1)
            yield Attack(f"{name.decode()} hides {path.decode()}", get(path, name + b": /health/live"))
        for method in (b"HEAD", b"OPTIONS", b"POST", b"PUT", b"PATCH", b"DELETE", b"TRACE", b"PROPFIND"):
            yield Attack(
                f"{method.decode()} {path.decode()}", raw(method + b" " + path + b" HTTP/1.1", b"host: localhost")
            )
        for name in (b"x-http-method-override", b"x-http-method", b"x-method-override"):
            yield Attack(f"{name.decode()} {path.decode()}", get(path, name + b": OPTIONS"))
        for host in (b"127.0.0.1:1", b"localhost", b"", b"admin", b"x@127.0.0.1"):
            yield Attack(f"host {host.decode()} {path.decode()}", raw(b"GET %b HTTP/1.1" % path, b"host: " + host))
        yield Attack(f"HTTP/1.0 {path.decode()}", raw(b"GET %b HTTP/1.0" % path))
        yield Attack(f"hop by hop {path.decode()}", get(path, b"connection: authorization, x-slipstream-admin"))


def smuggled(known: Secrets) -> Iterator[Attack]:
    """A guarded request hidden in, or behind, one that is open: it may be answered, but only with a refusal."""
    key = b"authorization: Bearer " + known.admin.encode()
    for path in (*ADMIN_READS, *USER_READS):
        hidden = get(path)
        yield Attack(f"pipelined {path.decode()}", LIVE + hidden + LIVE, open=2)
        for name, fields in {
            "CL.TE": (b"content-length: 4", b"transfer-encoding: chunked"),
            "TE.CL": (b"transfer-encoding: chunked", b"content-length: 4"),
            "TE.TE": (b"transfer-encoding: chunked", b"transfer-encoding: x"),
            "CL.CL": (b"content-length: 0", b"content-length: 5"),
            "TE with a space": (b"transfer-encoding : chunked",),
            "TE in a folded line": (b"x-a: b\r\n transfer-encoding: chunked",),
            "TE xchunked": (b"transfer-encoding: xchunked",),
        }.items():
            data = raw(b"GET /health/live HTTP/1.1", b"host: localhost", *fields, body=b"0\r\n\r\n" + hidden)
            yield Attack(f"{name} {path.decode()}", data)
        split = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx-a: b\n\n" + hidden
        yield Attack(f"line break alone {path.decode()}", split)
        upgrade = (b"connection: upgrade", b"upgrade: h2c", b"http2-settings: AAMAAABk")
        yield Attack(f"behind an upgrade {path.decode()}", get(b"/health/live", *upgrade) + hidden, open=1)
    trailing = chunked(GOOD, trailer=key + b"\r\n")
    yield Attack(
        "key in a trailer",
        raw(
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: localhost",
            JSON,
            b"transfer-encoding: chunked",
            body=trailing,
        ),
    )
    yield Attack("key in the body", post(key + b"\r\n\r\n" + GOOD))
    yield Attack("key of the request before", LIVE[:-2] + key + b"\r\n\r\n" + post(GOOD), open=1)


def as_user(known: Secrets) -> Iterator[Attack]:
    """A good key that is not an admin's, before what only admins may see."""
    key = bearer(known.user)
    for path in ADMIN_READS:
        yield Attack(f"user reads {path.decode()}", get(path, key))
        yield Attack(f"user says admin {path.decode()}", get(path, key, b"x-slipstream-admin: true", b"x-role: admin"))
    yield Attack("user kills", post(b"{}", key, path="/admin/kills"))
    yield Attack("user ends a kill", raw(b"DELETE /admin/kills/default/pair HTTP/1.1", b"host: localhost", key))


def with_admin(known: Secrets) -> Iterator[Attack]:
    """An admin's key and token on the public port of a gateway that has another for admins."""
    for key in (bearer(known.admin), bearer(good_token(known))):
        for path in ADMIN_READS:
            for target in (path, b"http://127.0.0.1:1%b" % path, b"/" + path):
                yield Attack(f"admin reads {target.decode()}", get(target, key, b"x-forwarded-port: 1"))


def attacks(known: Secrets) -> tuple[Attack, ...]:
    return (*credentials(known), *targets(known), *overrides(), *smuggled(known), *as_user(known))


async def opened(port: int, tried: Sequence[Attack]) -> dict[str, tuple[int, ...]]:
    """The attacks that were let through, or that broke something, with what they were answered."""
    room, found = asyncio.Semaphore(AT_ONCE), {}

    async def one(attack: Attack) -> None:
        async with room:
            heads_only = attack.data.startswith(b"HEAD")
            answers = await talk(port, [attack.data], answers=attack.open + 1, quiet_s=_QUIET_S, heads_only=heads_only)
        passed = sum(status < 400 for status in answers.statuses)
        if passed > attack.open or any(status >= 500 for status in answers.statuses) or answers.hung:
            found[attack.name] = answers.statuses

    await asyncio.gather(*(one(attack) for attack in tried))
    return found
