"""Control routes on vLLM's own port. Errors have OpenAI's form.

    GET  /slipstream                    versions, drafting method, longest draft, acceptance rule, classes, limit
    GET  /slipstream/classes            counts and present draft length of each class
    GET  /slipstream/limit              {"limit": int | null}
    PUT  /slipstream/limit              {"limit": int | null}       upper bound for every request from the next step on
    PUT  /slipstream/requests/{id}      {"draft_length": int}       one request, by the id in its response
    POST /slipstream/stop_drafting      length 0 for all running and waiting requests

Changes act on the requests of all clients. They need the bearer token SLIPSTREAM_VLLM_TOKEN; vLLM's own API keys, which
clients have, may read. With neither configured any client may read, only loopback clients may change, and no web page
that is open in a browser there. If the engine does not answer, the status is 504.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from json import JSONDecodeError
from typing import Any

import vllm
import vllm.envs as envs
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from vllm.logger import init_logger

from slipstream_vllm import __version__, admission, compatibility, counters, settings, watchdog
from slipstream_vllm.class_file import ClassFile
from slipstream_vllm.class_report import by_class
from slipstream_vllm.draft_length import checked_length
from slipstream_vllm.errors import BadRequest
from slipstream_vllm.hooks import wrap
from slipstream_vllm.resumption import resumes

logger = init_logger(f"vllm.{__name__}")
PREFIX = "/slipstream"
ENGINE_DEADLINE_S = 10.0
_OF_PAGES = ("origin", "sec-fetch-site")


def install() -> None:
    """Add the routes to vLLM's API server.

    vLLM loads endpoint plugins only if VLLM_PLUGINS names them; this one is selected by `--scheduler-cls` instead.
    """
    import vllm.plugins

    wrap(vllm.plugins, "load_endpoint_plugins", _with_control_routes)


def _with_control_routes(load: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def load_with_control_routes(*args: Any, **kwargs: Any) -> list[Any]:
        return [*load(*args, **kwargs), ControlRoutes()]

    return load_with_control_routes


class ControlRoutes:
    """Implements vLLM's protocol `EndpointPlugin`."""

    name = "slipstream"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes to a server with the plugin's scheduler."""
        if not compatibility.names_scheduler(getattr(app.state.args, "scheduler_cls", None)):
            return
        from slipstream_vllm import response_counts

        admission.install_responses()
        response_counts.install()
        app.include_router(_router())

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Called once by vLLM, when the engine is ready."""
        if engine_client is not None and compatibility.serves(engine_client.vllm_config):
            file = settings.class_file(engine_client.vllm_config, report=logger.warning)
            if file is not None:
                admission.install_rules(file)
            watchdog.install()
            counters.observe_limit(engine_client.vllm_config.num_speculative_tokens)
            state.slipstream = Control(
                engine_client, token=settings.control_token(), api_keys=_api_keys(args), class_file=file
            )


class Refusal(Exception):
    """An error response."""

    def __init__(self, status: HTTPStatus, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def response(self) -> JSONResponse:
        kind = self.status.phrase.replace(" ", "") + "Error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status.value}
        headers = {"WWW-Authenticate": "Bearer"} if self.status is HTTPStatus.UNAUTHORIZED else None
        return JSONResponse({"error": error}, self.status, headers)


class Control:
    """The engine behind the routes, with access control."""

    def __init__(
        self,
        engine_client: Any,
        *,
        token: str | None = None,
        api_keys: Iterable[str] = (),
        class_file: ClassFile | None = None,
        deadline_s: float = ENGINE_DEADLINE_S,
    ) -> None:
        self._class_file = class_file
        self._instance = secrets.token_hex(8)
        self._deadline_s = deadline_s
        self._core = engine_client.engine_core
        self._config = engine_client.vllm_config
        self._may_change = [_digest(token)] if token else []
        self._may_read = [*self._may_change, *map(_digest, api_keys)]

    @property
    def max_draft_length(self) -> int:
        """num_speculative_tokens; 0 without speculation."""
        return int(self._config.num_speculative_tokens)

    async def call(self, method: str, *args: object) -> list[Any]:
        """Call an engine utility on every data-parallel rank. Returns: one result per rank.

        Raises: `Refusal` with 504 if a rank does not answer in time; utilities run between two steps.
        """
        engines = self._core.core_engines
        calls = (self._core._call_utility_async(method, *args, engine=engine) for engine in engines)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.gather(*calls)
        except TimeoutError as error:
            raise Refusal(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"The engine did not answer within {self._deadline_s:g} s; a change may still take effect.",
            ) from error

    async def limit(self, limit: object = "get") -> int | None:
        """Set or read the limit. Returns: the limit in force on every rank."""
        bound: int | None = (await self.call("slipstream_limit", limit))[0]
        counters.observe_limit(self.max_draft_length if bound is None else bound)
        return bound

    def classes(self) -> dict[str, object] | None:
        """The file of classes, and the problem of its present version if that is not in use."""
        if (file := self._class_file) is None:
            return None
        file.current()
        return {"file": str(file.path), "problem": file.problem}

    def describe(self) -> dict[str, object]:
        """The properties that do not change while the server runs."""
        speculative = self._config.speculative_config
        return {
            "plugin": __version__,
            "vllm": vllm.__version__,
            "method": speculative.method if speculative is not None else None,
            "max_draft_length": self.max_draft_length,
            "acceptance": settings.acceptance(self._config),
            "scheduler": "async" if self._config.scheduler_config.async_scheduling else "sync",
            "counters": True,
            "adaptive": True,
            "protects": settings.allocates(self._config),
            "hybrid": settings.is_hybrid(self._config),
            "resumes": resumes(self._config),
            "instance": self._instance,
        }

    def authorize(self, request: Request, *, changes: bool) -> None:
        """Raises: `Refusal` with 401 for a wrong or missing token, 403 for a token that may only read, and for a remote
        client if no token is set."""
        if self._may_read:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            digest = _digest(token)
            if scheme.lower() != "bearer" or not _is_among(digest, self._may_read):
                raise Refusal(HTTPStatus.UNAUTHORIZED, "The bearer token is missing or wrong.")
            if changes and not _is_among(digest, self._may_change):
                raise Refusal(
                    HTTPStatus.FORBIDDEN,
                    f"vLLM's API key may not change this server for all clients: set {settings.TOKEN_VARIABLE} there, "
                    "and send it as bearer token.",
                )
        elif changes and not _is_loopback(request):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"Only loopback clients may change this server: set {settings.TOKEN_VARIABLE} there, and send "
                "it as bearer token.",
            )
        elif changes and any(name in request.headers for name in _OF_PAGES):  # a browser sends them with each change
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"Web pages must not change this server: set {settings.TOKEN_VARIABLE} there, or omit "
                "Origin and Sec-Fetch-Site.",
            )


def _router() -> APIRouter:
    router = APIRouter(prefix=PREFIX)
    for path, method, answer in (
        ("", "GET", _describe),
        ("/classes", "GET", _get_classes),
        ("/limit", "GET", _get_limit),
        ("/limit", "PUT", _put_limit),
        ("/requests/{request_id:path}", "PUT", _put_request),  # clients choose ids: X-Request-Id
        ("/stop_drafting", "POST", _stop_drafting),
    ):
        router.add_api_route(path, _guarded(answer, changes=method != "GET"), methods=[method])
    return router


def _guarded(answer: Callable[[Control, Request], Any], *, changes: bool) -> Callable[..., Any]:
    async def guarded(request: Request) -> JSONResponse:
        try:
            control: Control | None = getattr(request.app.state, "slipstream", None)
            if control is None:
                raise Refusal(HTTPStatus.NOT_FOUND, "This server runs without slipstream_vllm.Scheduler.")
            control.authorize(request, changes=changes)
            return JSONResponse(await answer(control, request))
        except BadRequest as error:
            return Refusal(HTTPStatus.BAD_REQUEST, error.args[0], error.parameter).response()
        except Refusal as refusal:
            return refusal.response()

    return guarded


async def _describe(control: Control, request: Request) -> dict[str, object]:
    return {**control.describe(), "classes": control.classes(), "limit": await control.limit()}


async def _get_classes(control: Control, request: Request) -> dict[str, object]:
    return {"classes": by_class(await control.call("slipstream_classes"))}


async def _get_limit(control: Control, request: Request) -> dict[str, object]:
    return {"limit": await control.limit()}


async def _put_limit(control: Control, request: Request) -> dict[str, object]:
    limit = await _field(request, "limit")
    if limit is not None:
        checked_length(limit, control.max_draft_length, "limit")
    return {"limit": await control.limit(limit)}


async def _put_request(control: Control, request: Request) -> dict[str, object]:
    request_id = request.path_params["request_id"]
    length = checked_length(await _field(request, "draft_length"), control.max_draft_length, "draft_length")
    changed = sum(await control.call("slipstream_set_length", request_id, length))
    if not changed:
        raise Refusal(HTTPStatus.NOT_FOUND, f"No running or waiting request has the id {request_id!r}.", "id")
    return {"changed": changed}


async def _stop_drafting(control: Control, request: Request) -> dict[str, object]:
    return {"stopped": sum(await control.call("slipstream_stop_drafting"))}


async def _field(request: Request, name: str) -> object:
    try:
        body = await request.json()
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if not isinstance(body, dict) or set(body) != {name}:
        raise Refusal(HTTPStatus.BAD_REQUEST, f'The body must be a JSON object with the one field "{name}".', name)
    return body[name]


def _api_keys(args: Namespace) -> list[str]:
    """vLLM's own: its clients have them."""
    return [key for key in args.api_key or [envs.VLLM_API_KEY] if key]


def _is_among(digest: bytes, accepted: Sequence[bytes]) -> bool:
    return any(secrets.compare_digest(digest, one) for one in accepted)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _is_loopback(request: Request) -> bool:
    try:
        address = ip_address(request.client.host if request.client is not None else "")
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # on a listener of both families
    except ValueError:  # a Unix socket or a test client has no address
        return False
