"""The contract's control routes, with the names, answers and errors of the plugin for vLLM.

GET  /slipstream                    engine, longest draft, acceptance rule, resumption, fingerprint, drafts, limit
GET  /slipstream/limit              {"limit": int | null}
PUT  /slipstream/limit              {"limit": int | null}       upper bound for every request from the next step on
POST /slipstream/stop_drafting      length 0 for all running and waiting requests
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from slipstream_engine.openai.errors import JSON, Refusal, bad_field
from slipstream_engine.openai.request.body import read_body
from slipstream_engine.openai.request.extra_arguments import checked_length
from slipstream_engine.serving.service import EngineService

_DISTRIBUTION = "slipstream-serving"
_MAX_BODY_BYTES = 1024
_OF_PAGES = ("origin", "sec-fetch-site")
Answer = Callable[[Request], Awaitable[object]]


class Access:
    """Requires the bearer token `key`. Without a key, only loopback clients may change the server, and no web page that
    is open in a browser there."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def check(self, request: Request, *, changes: bool = False) -> None:
        """Raises `Refusal` with 401 or 403."""
        if self._key is not None:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not secrets.compare_digest(token.encode(), self._key.encode()):
                raise Refusal(HTTPStatus.UNAUTHORIZED, "The bearer token is missing or wrong.")
        elif changes and not _is_loopback(request):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "Only loopback clients may change this server: start it with an API key, and send it as bearer token.",
            )
        elif changes and any(name in request.headers for name in _OF_PAGES):  # a browser sends them with each change
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "Web pages must not change this server: start it with an API key, or omit Origin and Sec-Fetch-Site.",
            )


class Control:
    """The routes for `engine`."""

    def __init__(self, engine: EngineService, access: Access) -> None:
        self._engine, self._access = engine, access
        self._version = _version()
        self._instance = secrets.token_hex(8)

    def routes(self) -> list[Route]:
        return [
            Route(f"/slipstream{path}", self._guarded(answer, changes=method != "GET"), methods=[method])
            for path, method, answer in (
                ("", "GET", self._describe),
                ("/limit", "GET", self._get_limit),
                ("/limit", "PUT", self._put_limit),
                ("/stop_drafting", "POST", self._stop_drafting),
            )
        ]

    def _guarded(self, answer: Answer, *, changes: bool) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._access.check(request, changes=changes)
                return Response(msgspec.json.encode(await answer(request)), media_type=JSON)
            except Refusal as refusal:
                return refusal.response()
            except ClientDisconnect:
                return Response()  # the client is gone

        return guarded

    async def _describe(self, request: Request) -> object:
        facts = self._engine.facts()
        return {
            "engine": facts.engine,
            "plugin": self._version,
            "method": self._engine.method if facts.max_draft_length else None,
            "max_draft_length": facts.max_draft_length,
            "context_tokens": facts.context_tokens,
            "acceptance": "equality",
            "scheduler": "sync",
            "counters": True,
            "adaptive": True,
            "protects": True,
            "hybrid": self._engine.method == "hybrid",
            "resumes": "seeded",
            "resumes_stops": True,
            "scores": False,
            "fingerprint": facts.fingerprint,
            "instance": self._instance,
            "drafts": facts.drafts,
            "draft_standings": facts.draft_standings,
            "classes": None,
            "limit": self._engine.limit,
        }

    async def _get_limit(self, request: Request) -> object:
        return {"limit": self._engine.limit}

    async def _put_limit(self, request: Request) -> object:
        limit = _field(await read_body(request, _MAX_BODY_BYTES), "limit")
        self._engine.limit = (
            None if limit is None else checked_length(limit, self._engine.facts().max_draft_length, "limit")
        )
        return {"limit": self._engine.limit}

    async def _stop_drafting(self, request: Request) -> object:
        return {"stopped": self._engine.stop_drafting()}


def _field(raw: bytes, name: str) -> object:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if not isinstance(body, dict) or set(body) != {name}:
        raise bad_field(name, f'must be the one field of the body: {{"{name}": …}}.')
    return body[name]


def _version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:  # a folder of sources, as in a container of Triton
        return "source"


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:  # a Unix socket has no address
        return False
