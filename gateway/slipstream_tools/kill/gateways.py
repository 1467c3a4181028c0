"""The break-glass of `slipstream kill`: turns the kill switch at each gateway itself, without the API server.

Exit codes: 0 every gateway has applied it; 1 a gateway did not (named); 2 usage error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec
from slipstream_core.environment import secret, user
from slipstream_core.errors import CommandError
from slipstream_core.hosts import is_http_url
from slipstream_core.manifest.kill_switch import KillEvent

KEY_VARIABLE = "SLIPSTREAM_API_KEY"
NOT_APPLIED = 1
_PAIRS = ("mp", "modelpair", "modelpairs")


class _NoRedirect(HTTPRedirectHandler):
    """An admin's key goes to the named gateway alone."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = build_opener(ProxyHandler({}), _NoRedirect)  # a proxy must not be needed for a kill


class _Answer(NamedTuple):
    gateway: str
    event: KillEvent | None
    problem: str = ""


class _Message(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Message


def turn_at_gateways(args: argparse.Namespace, *, on: bool) -> int:
    """Turns the switch at all gateways at the same time, prints their answers and returns the exit code."""
    pair = _pair(args.object, args.namespace)
    headers = {"content-type": "application/json", "x-slipstream-console": "1"}
    if (key := secret(KEY_VARIABLE)) is not None:
        headers["authorization"] = f"Bearer {key}"
    for url in args.gateway:
        if not is_http_url(url):
            raise CommandError(f"--gateway {url}: expected http://HOST:PORT", exit_code=2)
    with ThreadPoolExecutor(len(args.gateway)) as threads:
        asked = [threads.submit(_turn, url, pair, on, headers, args.timeout) for url in args.gateway]
        answers = [one.result() for one in asked]
    for answer in answers:
        print(_said_of(answer, on=on), file=sys.stderr if answer.event is None else sys.stdout, flush=True)
    return NOT_APPLIED if any(answer.event is None for answer in answers) else 0


def _pair(reference: str, namespace: str | None) -> str:
    kind, _, name = reference.partition("/")
    if kind.lower().partition(".")[0] not in _PAIRS or not name or "/" in name:
        raise CommandError(f"with --gateway, expected modelpair/NAME, got {reference!r}", exit_code=2)
    return f"{namespace}/{name}" if namespace else name


def _turn(url: str, pair: str, on: bool, headers: Mapping[str, str], timeout_s: float) -> _Answer:
    request = Request(
        f"{url.rstrip('/')}/admin/gateway-kills/{quote(pair)}",
        data=msgspec.json.encode({"by": user(), "reason": "slipstream kill --gateway" if on else ""}),
        headers=dict(headers),
        method="POST" if on else "DELETE",
    )
    try:
        with _opener.open(request, timeout=timeout_s) as response:
            event = msgspec.json.decode(response.read(), type=KillEvent)
            return _Answer(url, event) if event.landed_s is not None else _Answer(url, None, "it is not in force")
    except HTTPError as exc:
        return _Answer(url, None, f"{exc.code}: {_message(exc)}")
    except (OSError, ValueError, HTTPException) as exc:
        return _Answer(url, None, str(exc) or type(exc).__name__)


def _message(refusal: HTTPError) -> str:
    try:
        body = refusal.read()
    except (OSError, HTTPException):
        return str(refusal.reason)
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except ValueError:
        return body[:200].decode(errors="replace")


def _said_of(answer: _Answer, *, on: bool) -> str:
    event = answer.event
    if event is None:
        return f"{answer.gateway}: not {'killed' if on else 'allowed again'}: {answer.problem}"
    note = f" ({event.note})" if event.note else ""
    done = "killed" if on else "allowed again"
    return f"{answer.gateway}: {done} in {(event.landed_s or 0.0) * 1e3:.0f} ms{note}"
