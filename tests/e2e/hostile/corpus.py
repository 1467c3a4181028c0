"""Hostile requests made by hand: the bytes, and the only right answers.

Sources: RFC 9110 and 9112; the request smuggling classes of PortSwigger's and Kettle's papers; JSON Parsing Minefield
(Seriot); what has gone wrong in servers of this kind.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

CHAT = "/v1/chat/completions"
MODEL = "acme"


class Case(NamedTuple):
    """`statuses` are the final statuses of the answers, in order; `closes` says that the server ends the connection
    after them, and `body` what they have in them. `whole`: so it is where all bytes come at once; otherwise an answer
    before the end of a body, or one to a client that sends on after its last request, ends the connection early."""

    name: str
    data: bytes
    statuses: tuple[int, ...]
    closes: bool = False
    body: bytes = b""
    whole: bool = False


def chat(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **more}


JSON = b"content-type: application/json"


def post(body: bytes, *fields: bytes, path: str = CHAT, length: bool = True) -> bytes:
    """A request of its own connection: only `fields` may say otherwise."""
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: localhost", *fields]
    if not any(field.startswith(b"content-type:") for field in fields):
        lines.append(JSON)
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def posted(**more: Any) -> bytes:
    return post(json.dumps(chat(**more)).encode())


def raw(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


GOOD = json.dumps(chat()).encode()
LIVE = raw(b"GET /health/live HTTP/1.1", b"host: localhost")
_POST = b"POST /v1/chat/completions HTTP/1.1"
_CHUNKED = b"transfer-encoding: chunked"


def chunked(body: bytes, *, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n0\r\n%b\r\n" % (len(body), extension, body, trailer)


def framing() -> Iterator[Case]:
    """Where two servers could see different requests: one 4xx, and nothing after it is heard."""
    smuggled = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
    length = b"content-length: %d" % len(GOOD)
    heads = {
        "both lengths": (b"host: localhost", b"content-length: 5", _CHUNKED),
        "both lengths, other order": (b"host: localhost", _CHUNKED, b"content-length: 5"),
        "two lengths": (b"host: localhost", b"content-length: 5", b"content-length: 6"),
        "two equal lengths": (b"host: localhost", length, length),
        "length list": (b"host: localhost", b"content-length: 5, 5"),
        "negative length": (b"host: localhost", b"content-length: -1"),
        "signed length": (b"host: localhost", b"content-length: +5"),
        "hexadecimal length": (b"host: localhost", b"content-length: 0x5"),
        "length with a point": (b"host: localhost", b"content-length: 5.0"),
        "length beyond 64 bits": (b"host: localhost", b"content-length: " + b"9" * 30),
        "empty length": (b"host: localhost", b"content-length: "),
        "length in other digits": (b"host: localhost", "content-length: ５".encode()),
        "xchunked": (b"host: localhost", b"transfer-encoding: xchunked"),
        "chunked twice": (b"host: localhost", b"transfer-encoding: chunked, chunked"),
        "two codings": (b"host: localhost", _CHUNKED, b"transfer-encoding: identity"),
        "coding before chunked": (b"host: localhost", b"transfer-encoding: gzip, chunked"),
        "identity": (b"host: localhost", b"transfer-encoding: identity"),
        "coding with a vertical tab": (b"host: localhost", b"transfer-encoding: \x0bchunked"),
        "coding on the next line": (b"host: localhost", b"transfer-encoding:\r\n chunked"),
        "space before the colon": (b"host: localhost", b"content-length : 5"),
        "folded line": (b"host: localhost", b"x-a: b\r\n c"),
        "line break alone": (b"host: localhost\nx-a: b",),
        "carriage return alone": (b"host: localhost\rx-a: b",),
        "zero byte": (b"host: localhost", b"x-a: b\x00c"),
        "zero byte in a name": (b"host: localhost", b"x\x00a: b"),
        "control character": (b"host: localhost", b"x-a: b\x01c"),
        "no name": (b"host: localhost", b": b"),
        "no colon": (b"host: localhost", b"x-a"),
        "name in Latin-1": (b"host: localhost", b"x-\xe4: b"),
        "no host": (length,),
        "two hosts": (b"host: localhost", b"host: y", length),
    }
    for name, lines in heads.items():
        yield Case(name, raw(_POST, *lines, body=b"0\r\n\r\n" + smuggled), (400,), closes=True, body=b'"error"')
    broken = {
        "chunk size with a sign": b"+1\r\nx\r\n0\r\n\r\n",
        "negative chunk": b"-1\r\nx\r\n0\r\n\r\n",
        "chunk size with 0x": b"0x1\r\nx\r\n0\r\n\r\n",
        "chunk beyond 64 bits": b"f" * 17 + b"\r\nx\r\n0\r\n\r\n",
        "chunk size with a space": b"1 \r\nx\r\n0\r\n\r\n",
        "chunk with a line break alone": b"1\nx\r\n0\r\n\r\n",
        "chunk extension with a line break alone": b"1;a\nx\r\n0\r\n\r\n",
        "chunk longer than it says": b"1\r\nxyz\r\n0\r\n\r\n",
        "length in a trailer": b"1\r\nx\r\n0\r\ncontent-length: 3\r\n\r\n",
        "endless extension": b"1;" + b"a" * 300_000,
        "endless trailers": b"0\r\n" + b"x-a: b\r\n" * 40_000,
        "endless trailer": b"0\r\nx-a: " + b"b" * 300_000,
        "chunks of one byte": b"1\r\n \r\n" * 100_000,
    }
    for name, body in broken.items():
        # Without a media type the endpoint refuses the head at once: 415, if the body comes later.
        data = raw(_POST, b"host: localhost", b"content-type: application/json", _CHUNKED, body=body + smuggled)
        yield Case(name, data, (400,), closes=True, body=b'"error"')


def heads() -> Iterator[Case]:
    for line in (
        b"GET /",
        b"GET / HTTP/1.2",
        b"GET / HTTP/2.0",
        b"GET / HTTP/0.9",
        b"GET / XTTP/1.1",
        b"get / HTTP/1.1",
    ):
        yield Case(f"request line {line.decode()}", raw(line, b"host: localhost"), (400,), closes=True)
    for line in (
        b"PRI * HTTP/2.0",
        b"GET\t/\tHTTP/1.1",
        b"GET / a HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET /\x00 HTTP/1.1",
    ):
        yield Case(f"request line {line!r}", raw(line, b"host: localhost"), (400,), closes=True)
    for target in (b"v1/models", b"\\v1\\models", b"?x", b"example.com:443", b"#a", b"/\x7f"):
        yield Case(f"target {target!r}", raw(b"GET %b HTTP/1.1" % target, b"host: localhost"), (400,), closes=True)
    yield Case("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, (400,), closes=True)
    yield Case("no HTTP at all", b"\x00\xff" * 500, (400,), closes=True)
    yield Case("empty lines first", b"\r\n\r\n" + LIVE, (200,))
    yield Case("absolute target", raw(b"GET http://other/health/live HTTP/1.1", b"host: localhost"), (200,))
    yield Case("absolute target without a path", raw(b"GET http://other HTTP/1.1", b"host: localhost"), (404,))
    yield Case("OPTIONS *", raw(b"OPTIONS * HTTP/1.1", b"host: localhost"), (404,))
    yield Case("CONNECT", raw(b"CONNECT example.com:443 HTTP/1.1", b"host: localhost"), (405,), closes=True)
    yield Case("TRACE", raw(b"TRACE /v1/models HTTP/1.1", b"host: localhost"), (405,))
    yield Case("unknown method", raw(b"PWN / HTTP/1.1", b"host: localhost"), (400,), closes=True)
    yield Case("HTTP/1.0", raw(b"GET /health/live HTTP/1.0"), (200,), closes=True)
    yield Case("HTTP/1.0 with chunks", raw(_POST[:-1] + b"0", _CHUNKED, body=b"0\r\n\r\n"), (400,), closes=True)
    many = [b"x-%d: a" % index for index in range(500)]
    yield Case("many fields", raw(b"GET /health/live HTTP/1.1", b"host: localhost", *many), (431,), closes=True)
    yield Case(
        "long field",
        raw(b"GET /health/live HTTP/1.1", b"host: localhost", b"x-a: " + b"a" * 70_000),
        (431,),
        closes=True,
    )
    yield Case("endless field", b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"a" * 500_000, (431,), closes=True)
    yield Case("endless name", b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"a" * 500_000, (431,), closes=True)
    yield Case("long URL", raw(b"GET /%b HTTP/1.1" % (b"a" * 20_000), b"host: localhost"), (414,), closes=True)
    yield Case("endless URL", b"GET /" + b"a" * 500_000, (431,), closes=True)
    yield Case("bad escape in the path", raw(b"GET /v1/models/%zz%ff%00 HTTP/1.1", b"host: localhost"), (404,))
    yield Case("path out of the root", raw(b"GET /../../etc/passwd HTTP/1.1", b"host: localhost"), (404,))


def connections() -> Iterator[Case]:
    """The state of a connection after each kind of end."""
    good, bad = post(GOOD), post(b"{")
    yield Case("pipelined", LIVE * 3, (200, 200, 200))
    yield Case("pipelined, the middle one bad", good + bad + good, (200, 400, 200))
    yield Case("pipelined, the middle one malformed", good + b"GET / HTTP/9\r\n\r\n" + good, (200, 400), closes=True)
    yield Case(
        "pipelined, the last one's chunks broken",
        good + raw(_POST, b"host: localhost", _CHUNKED, body=b"zz\r\n") + LIVE,
        (200, 400),
        closes=True,
    )
    yield Case(
        "pipelined after the last",
        raw(b"GET /health/live HTTP/1.1", b"host: localhost", b"connection: close") * 2,
        (200,),
        closes=True,
        whole=True,
    )
    yield Case("waits for 100", post(GOOD, b"expect: 100-continue") + LIVE, (200, 200))
    yield Case("waits for something else", post(GOOD, b"expect: 200-ok") + LIVE, (200, 200))
    h2c = (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")
    yield Case("upgrade to h2c", post(GOOD, *h2c) + LIVE, (200, 200))
    yield Case(
        "upgrade to h2c, chunked",
        raw(_POST, b"host: localhost", JSON, *h2c, _CHUNKED, body=chunked(GOOD)) + LIVE,
        (200, 200),
    )
    yield Case(
        "upgrade to a web socket",
        raw(b"GET /v1/models HTTP/1.1", b"host: localhost", *h2c[:1], b"upgrade: websocket"),
        (200,),
    )
    trailing = chunked(GOOD, extension=b';a="b"', trailer=b"authorization: Bearer x\r\nx-slipstream-mode: warp\r\n")
    yield Case(
        "trailers are not headers", raw(_POST, b"host: localhost", JSON, _CHUNKED, body=trailing) + LIVE, (200, 200)
    )
    yield Case("not found, with a body", post(b"x" * 1000, path="/nowhere") + LIVE, (404, 200), whole=True)


def bodies() -> Iterator[Case]:
    """Well-formed HTTP around something that is no request of ours; the connection goes on."""
    deep = 20_000
    texts: dict[str, bytes] = {
        "empty": b"",
        "spaces": b" " * 1000,
        "a list": b"[" + GOOD + b"]",
        "a text": b'"hi"',
        "a number": b"1",
        "null": b"null",
        "two values": GOOD + GOOD,
        "cut short": GOOD[:-5],
        "byte order mark": b"\xef\xbb\xbf" + GOOD,
        "UTF-16": GOOD.decode().encode("utf-16"),
        "invalid UTF-8": GOOD.replace(b"hi", b"\xff\xfe"),
        "overlong UTF-8": GOOD.replace(b"hi", b"\xc0\x80"),
        "surrogate in UTF-8": GOOD.replace(b"hi", b"\xed\xa0\x80"),
        "lone surrogate": GOOD.replace(b"hi", b"\\ud800"),
        "lone surrogate in a name": GOOD.replace(b'"max_tokens"', b'"\\udc00"'),
        "control character in a text": GOOD.replace(b"hi", b"h\x00i"),
        "bad escape": GOOD.replace(b"hi", b"\\x41"),
        "NaN": json.dumps(chat(temperature=float("nan"))).encode(),
        "Infinity": json.dumps(chat(temperature=float("inf"))).encode(),
        "1e999": GOOD.replace(b'"max_tokens": 2', b'"temperature": 1e999'),
        "comment": GOOD + b"// hi",
        "single quotes": GOOD.replace(b'"', b"'"),
        "trailing comma": GOOD[:-1] + b",}",
        "leading zero": GOOD.replace(b": 2", b": 02"),
        "hexadecimal": GOOD.replace(b": 2", b": 0x2"),
        "deep lists": b"[" * deep,
        "deep lists, closed": b"[" * deep + b"]" * deep,
        "deep objects": b'{"a":' * deep,
        "deep in a known field": GOOD[:-1] + b', "stop": ' + b"[" * deep + b"]" * deep + b"}",
        "deep in an unknown field": GOOD[:-1] + b', "zz": ' + b"[" * deep + b"]" * deep + b"}",
        "deep in a message": GOOD.replace(
            b'"hi"', b'[{"type": "text", "text": "a", "zz": ' + b"[" * deep + b"]" * deep + b"}]"
        ),
        "huge integer": GOOD.replace(b": 2", b": " + b"9" * 5000),
        "huge negative integer": GOOD.replace(b": 2", b": -" + b"9" * 5000),
        "huge exponent": GOOD.replace(b": 2", b": 1e" + b"9" * 500),
        "a fraction of a token": GOOD.replace(b": 2", b": 2.5"),
        "no tokens": json.dumps(chat(max_tokens=0)).encode(),
        "tokens as text": json.dumps(chat(max_tokens="2")).encode(),
        "tokens as true": json.dumps(chat(max_tokens=True)).encode(),
        "messages as object": json.dumps({**chat(), "messages": {"role": "user"}}).encode(),
        "messages as text": json.dumps({**chat(), "messages": "hi"}).encode(),
        "no messages": json.dumps({**chat(), "messages": []}).encode(),
        "null message": json.dumps({**chat(), "messages": [None]}).encode(),
        "unknown role": json.dumps({**chat(), "messages": [{"role": "root", "content": "hi"}]}).encode(),
        "content as number": json.dumps({**chat(), "messages": [{"role": "user", "content": 1}]}).encode(),
        "empty parts": json.dumps({**chat(), "messages": [{"role": "user", "content": []}]}).encode(),
        "part without a type": json.dumps({**chat(), "messages": [{"role": "user", "content": [{}]}]}).encode(),
        "a million stop strings": json.dumps(chat(stop=["a"] * 600_000)).encode(),
        "many choices": json.dumps(chat(n=10**6)).encode(),
        "model as list": json.dumps(chat(model=["acme"])).encode(),
        "empty model": json.dumps(chat(model="")).encode(),
        "seed beyond 64 bits": json.dumps(chat(seed=2**63)).encode(),
    }
    for name, body in texts.items():
        yield Case(f"body: {name}", post(body) + LIVE, (400, 200))
    unknown = json.dumps(chat(model="m" * 100_000)).encode()
    yield Case("body: long name of a model", post(unknown) + LIVE, (404, 200))
    message = {"role": "user", "content": "a"}
    for count, status in ((10_000, 200), (100_000, 400)):
        many = json.dumps({**chat(), "messages": [message] * count}).encode()
        yield Case(f"body: {count:,} messages", post(many) + LIVE, (status, 200))
    twice = GOOD[:-1] + b', "max_tokens": 1}'
    yield Case("body: a field twice", post(twice) + LIVE, (200, 200))
    yield Case("body: over the limit", post(b" " * (5 << 20)), (413,), closes=True, whole=True)
    yield Case(
        "body: length over the limit",
        post(b"{", b"content-length: 9999999999999", length=False),
        (413,),
        True,
        whole=True,
    )
    yield Case("body: compressed", post(gzip.compress(GOOD), b"content-encoding: gzip") + LIVE, (415, 200), whole=True)
    yield Case("body: said to be compressed", post(GOOD, b"content-encoding: br") + LIVE, (415, 200), whole=True)
    yield Case("body: not encoded", post(GOOD, b"content-encoding: identity") + LIVE, (200, 200))
    for kind in (
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"",
        b"nonsense",
    ):
        yield Case(f"body: content-type {kind!r}", post(GOOD, b"content-type: " + kind) + LIVE, (415, 200), whole=True)
    for kind in (b"application/json", b"Application/JSON ; charset=utf-8", b"application/vnd.api+json"):
        yield Case(f"body: content-type {kind!r}", post(GOOD, b"content-type: " + kind) + LIVE, (200, 200))


def fields() -> Iterator[Case]:
    """Headers that mean something here."""
    for name in (b"x-slipstream-mode", b"x-slipstream-draft-length", b"x-slipstream-learn"):
        for value in (b"", b"\xff", b"a" * 5000, b"speculative,plain", b"-1", b"1e9", b"\xb2"):
            yield Case(f"{name!r}: {value[:20]!r}", post(GOOD, name + b": " + value) + LIVE, (400, 200))
    for name in (b"x-request-id", b"traceparent", b"tracestate", b"authorization", b"user-agent", b"accept", b"cookie"):
        for value in (b"", b"\xff\xfe", b"a" * 5000, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-ff", b"\t,;=\"'"):
            yield Case(f"{name!r}: {value[:20]!r}", post(GOOD, name + b": " + value) + LIVE, (200, 200))


def corpus() -> tuple[Case, ...]:
    return (*framing(), *heads(), *connections(), *bodies(), *fields())
