"""Watches whether a vLLM server has Slipstream's plugin, by repeated requests: a server may restart with or without it.

Without the plugin vLLM silently ignores the draft length of a request. So no request speculates on a server until it
has reported its capabilities.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

import msgspec
from slipstream_core.errors import SlipstreamError, UpstreamTimeout
from slipstream_core.types import Reason, Withheld

from slipstream_gateway.upstreams.base import Drafting

QUERY_EVERY_S = 5.0  # vLLM takes longer than this to restart, and logs each request
_AT_MOST_EVERY_S = 0.2
_log = logging.getLogger(__name__)

UNKNOWN = Drafting(
    withheld=Withheld(
        reason=Reason.ENGINE_UNVERIFIED,
        detail="the server has not reported yet whether it has Slipstream's vLLM plugin",
    )
)


class PluginAnswer(NamedTuple):
    """The server's response to `GET /slipstream`."""

    status: int
    body: bytes


_Word = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[\w.+:-]*\Z")]  # it is logged


class PluginFacts(msgspec.Struct, frozen=True):
    """The plugin's description of its server. `adaptive`: see `Job`. `max_draft_length` is 0 without speculation.
    `limit` is an admin's setting for all requests, None: no limit; all other fields are constant while the server
    runs. `resumes`: see `Drafting`."""

    plugin: _Word
    max_draft_length: int
    vllm: _Word = ""
    method: _Word | None = None
    acceptance: _Word = ""
    scheduler: str = ""
    limit: int | None = None
    adaptive: bool = False
    resumes: _Word = ""


_decode = msgspec.json.Decoder(PluginFacts).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_CHANGING = ("limit", "classes")
_EQUALITY = "equality"
"""The acceptance rule with which a seeded request gets the same tokens at every draft length."""
Query = Callable[[], Awaitable[PluginAnswer]]


class PluginWatch:
    """Queries one server from construction to `aclose`, every `every_s` seconds and after each `query_now`.

    `drafting` is the server's drafting state by its last response. A server that is too busy to respond keeps it; an
    unreachable one loses it, because another process may respond next.
    """

    def __init__(self, name: str, query: Query, *, every_s: float = QUERY_EVERY_S) -> None:
        self.drafting = UNKNOWN
        self._name = name
        self._send_query = query
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._logged = ""
        self._task = asyncio.create_task(self._run())

    def query_now(self) -> None:
        """Requests an early query, because the server may have changed."""
        self._wake.set()

    def lose(self) -> None:
        """Resets the state, because the server was unreachable."""
        self.drafting = UNKNOWN
        self._wake.set()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._query()
            except Exception:  # top of a task: one failure must not end it
                _log.exception("%s: the query of its plugin failed", self._name)
            await asyncio.sleep(_AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(self._every_s - _AT_MOST_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _query(self) -> None:
        try:
            answer = await self._send_query()
        except UpstreamTimeout:
            return
        except SlipstreamError:
            self.drafting = UNKNOWN
            return
        found, description = drafting_of(answer)
        self.drafting = found
        if description != self._logged:
            self._logged = description
            _log.log(logging.INFO if found.withheld is None else logging.WARNING, "%s: %s", self._name, description)


def drafting_of(answer: PluginAnswer) -> tuple[Drafting, str]:
    """The drafting state by the server's response, and its description in one sentence."""
    if answer.status == 200:
        try:
            return _drafting(_decode(answer.body), _identity(answer.body))
        except (ValueError, RecursionError):
            return _cannot("its /slipstream does not respond as Slipstream's vLLM plugin does")
    if answer.status == 404:
        return _cannot(
            "it does not have Slipstream's plugin: start vLLM with --scheduler-cls slipstream_vllm.Scheduler; drafts "
            "by its own --speculative-config are neither controlled nor checked"
        )
    if answer.status in (401, 403):
        return _cannot("its Slipstream plugin refuses the gateway's key: set the right one in spec.engine.apiKeyEnv")
    return UNKNOWN, f"its /slipstream returned status {answer.status}"


def _identity(body: bytes) -> str:
    """The document without its changing fields: a server with another identity drafts differently."""
    return repr(sorted((name, bytes(value)) for name, value in _decode_raw(body).items() if name not in _CHANGING))


def _drafting(facts: PluginFacts, identity: str) -> tuple[Drafting, str]:
    versions = f"slipstream-vllm {facts.plugin} in vLLM {facts.vllm}"
    if facts.max_draft_length < 1:
        found, why = _cannot(f"it runs without speculation ({versions}): start vLLM with --speculative-config")
        return found._replace(resumes=facts.resumes), why
    how = f"{facts.method}, acceptance by {facts.acceptance}"
    drafting = Drafting(
        longest=facts.max_draft_length,
        limit=facts.limit,
        identity=identity,
        adaptive=facts.adaptive,
        seed_equality=facts.acceptance == _EQUALITY,
        resumes=facts.resumes,
    )
    return drafting, f"drafts of up to {facts.max_draft_length} tokens ({how}; {versions})"


def _cannot(why: str) -> tuple[Drafting, str]:
    withheld = Withheld(reason=Reason.ENGINE_CANNOT, detail=f"the server does not support draft lengths: {why}")
    return Drafting(withheld=withheld), withheld.detail
