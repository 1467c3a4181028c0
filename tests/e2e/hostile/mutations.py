"""Requests made wrong at random: the same seed gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.e2e.hostile.corpus import GOOD, JSON, LIVE, chunked, corpus, post, posted, raw

Mutation = Callable[[random.Random, bytes], bytes]
LIGHT_BYTES = 20_000
_TOKENS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b"\r\n\r\n",
        b" ",
        b"\t",
        b":",
        b";",
        b'"',
        b"}",
        b"]",
        b"{",
        b"[",
        b"\\",
        b"\xff",
    ),
    *(
        b"content-length: 0\r\n",
        b"content-length: 7\r\n",
        b"transfer-encoding: chunked\r\n",
        b"expect: 100-continue\r\n",
    ),
    *(b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
    *(
        b"\\ud800",
        b"1e999",
        b"-1",
        b"null",
        b"true",
        b"[[[[",
        b"\xef\xbb\xbf",
        b"%00",
        b"%2e%2e/",
        b"99999999999999999999",
    ),
)


def seeds() -> tuple[bytes, ...]:
    """What is made wrong: requests of every kind that are right, and those of the corpus that are not large."""
    good = (
        *(LIVE, post(GOOD), posted(stream=True), posted(stream=True, stream_options={"include_usage": True})),
        post(b'{"model": "acme", "prompt": "hi", "max_tokens": 2}', path="/v1/completions"),
        post(b'{"model": "acme", "prompt": [1, 2, 3], "max_tokens": 2, "stream": true}', path="/v1/completions"),
        post(GOOD, path="/v1/route"),
        posted(stop=["a", "b"], n=2, seed=7, temperature=0.5, top_p=0.9, tools=[], logprobs=True),
        raw(b"GET /v1/models HTTP/1.1", b"host: localhost", b"accept: application/json"),
        raw(b"GET /v1/models/acme HTTP/1.1", b"host: localhost"),
        raw(b"GET /metrics HTTP/1.1", b"host: localhost"),
        raw(
            b"POST /v1/chat/completions HTTP/1.1",
            b"host: localhost",
            JSON,
            b"transfer-encoding: chunked",
            body=chunked(GOOD),
        ),
    )
    return good * 4 + tuple(case.data for case in corpus() if len(case.data) < LIGHT_BYTES)


def mutated(rng: random.Random, pool: Sequence[bytes]) -> bytes:
    data = rng.choice(pool)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        data = rng.choice(_MUTATIONS)(rng, data)
    return data[: 4 * LIGHT_BYTES]


def split(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes in up to eight pieces."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [piece for piece in (data[i:j] for i, j in zip([0, *cuts], [*cuts, len(data)], strict=True)) if piece]


def _flip(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        if found:
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _cut_out(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randrange(1, 30) :]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    part = data[at : at + rng.randrange(1, 60)]
    return data[:at] + part * rng.randrange(2, 5) + data[at:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + (rng.choice(_TOKENS) if rng.random() < 0.8 else rng.randbytes(rng.randrange(1, 20))) + data[at:]


def _swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\r\n".join(lines)


def _splice(rng: random.Random, data: bytes) -> bytes:
    other = post(GOOD) if rng.random() < 0.5 else LIVE
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


_MUTATIONS: tuple[Mutation, ...] = (_flip, _truncate, _cut_out, _repeat, _insert, _insert, _swap_lines, _splice)
