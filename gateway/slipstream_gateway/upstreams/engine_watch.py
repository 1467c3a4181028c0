"""Watches an engine's description of itself, `GET /slipstream`, by repeated requests: a server may restart with other
settings, and vLLM with or without Slipstream's plugin.

Without the plugin vLLM silently ignores the draft length of a request. So no request speculates on such a server until
it has described itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from slipstream_core.errors import ConnectTimeout, SlipstreamError, UpstreamTimeout
from slipstream_core.tasks import cancel
from slipstream_core.types import Reason, Withheld

from slipstream_gateway.upstreams.base import Drafting, DraftStanding
from slipstream_gateway.upstreams.transport import Fetched

QUERY_EVERY_S = 5.0  # vLLM takes longer than this to restart, and logs each request
_AT_MOST_EVERY_S = 0.2
_log = logging.getLogger(__name__)

UNKNOWN = Drafting(
    withheld=Withheld(
        reason=Reason.ENGINE_UNVERIFIED,
        detail="the server has not reported yet which draft lengths it supports",
    )
)

_Word = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[\w.+:-]*\Z")]  # it is logged


_MOST_DRAFTS, _MOST_STANDINGS = 16, 256
_DraftName = Annotated[str, msgspec.Meta(max_length=256)]


class EngineFacts(msgspec.Struct, frozen=True):
    """An engine's description of itself. `plugin` is the version of Slipstream in it. `adaptive`, `protects`: see
    `Job`. `max_draft_length` is 0 without speculation. `limit` is an admin's setting for all requests, None: no limit.
    `resumes` and `resumes_stops`: see `Drafting`; `fingerprint`: see `Upstream`. `scores`: it scores the tokens of a
    prompt. `drafts`: the names of its drafts if it has several, among which it chooses, and `draft_standings` what it
    knows of them. `instance` is a random word of the process. Engines may leave out all but the first two."""

    plugin: _Word
    max_draft_length: int
    engine: _Word = "vllm"
    vllm: _Word = ""
    method: _Word | None = None
    acceptance: _Word = ""
    scheduler: str = ""
    limit: int | None = None
    adaptive: bool = False
    protects: bool = False
    resumes: _Word = ""
    resumes_stops: bool = False
    scores: bool = True
    fingerprint: _Word = ""
    instance: _Word = ""
    drafts: Annotated[tuple[_DraftName, ...], msgspec.Meta(max_length=_MOST_DRAFTS)] = ()
    draft_standings: Annotated[tuple[DraftStanding, ...], msgspec.Meta(max_length=_MOST_STANDINGS)] = ()


_NO_FACTS = EngineFacts("", 0)
_decode = msgspec.json.Decoder(EngineFacts).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# Several processes with one configuration may share an address: only after a break does the instance count.
_CHANGING = ("limit", "classes", "drafts", "draft_standings", "instance")
_CANNOT = "the server does not support draft lengths"
_EQUALITY = "equality"
"""The acceptance rule with which a seeded request gets the same tokens at every draft length."""
Query = Callable[[], Awaitable[Fetched]]


class EngineWatch:
    """Queries one server from construction to `aclose`, every `every_s` seconds and after each `query_now`.

    `drafting` is the server's drafting state by its last response, `facts` the response. A server that is too busy to
    respond keeps them; an unreachable one loses them, because another process may respond next. `unknown`
    is the state of a server that has not described itself.
    """

    def __init__(self, name: str, query: Query, *, every_s: float = QUERY_EVERY_S, unknown: Drafting = UNKNOWN) -> None:
        self.drafting, self.facts = unknown, _NO_FACTS
        self._unknown = unknown
        self._process: tuple[Drafting, str] | None = None
        self._meeting: asyncio.Task[bool] | None = None
        self._name = name
        self._send_query = query
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._logged = ""
        self._task = asyncio.create_task(self._run())

    def query_now(self) -> None:
        """Requests an early query, because the server may have changed."""
        self._wake.set()

    async def meet(self) -> None:
        """Queries a server that has not described itself yet. Concurrent callers share one query."""
        if self.drafting is not self._unknown:
            return
        if self._meeting is None or self._meeting.done():
            self._meeting = asyncio.create_task(self._query())
        await asyncio.wait((self._meeting,))

    async def is_same(self) -> bool:
        """Whether the process that responds now is the one that described itself first since construction, the last
        loss of the state, or the last `is_same`."""
        before = self._process
        if not await self._query():
            return False
        self._process = self._described()
        return self._process == before

    def lose(self) -> None:
        """Resets the state, because the server was unreachable."""
        self._forget()
        self._wake.set()

    async def aclose(self) -> None:
        await cancel(self._task, self._meeting)

    def _forget(self) -> None:
        self.drafting, self.facts, self._process = self._unknown, _NO_FACTS, None

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._query()
            except Exception:  # top of a task: one failure must not end it
                _log.exception("%s: the query of its description failed", self._name)
            await asyncio.sleep(_AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(self._every_s - _AT_MOST_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _query(self) -> bool:
        """Whether the server responded."""
        try:
            answer = await self._send_query()
        except SlipstreamError as exc:
            if not isinstance(exc, UpstreamTimeout) or isinstance(exc, ConnectTimeout):
                self._forget()
            return False
        found, facts, description = drafting_of(answer)
        self.drafting, self.facts = self._unknown if found is UNKNOWN else found, facts or _NO_FACTS
        self._process = self._process or self._described()
        if description != self._logged:
            self._logged = description
            _log.log(logging.INFO if found.withheld is None else logging.WARNING, "%s: %s", self._name, description)
        return True

    def _described(self) -> tuple[Drafting, str]:
        return self.drafting._replace(limit=None), self.facts.instance


def drafting_of(answer: Fetched) -> tuple[Drafting, EngineFacts | None, str]:
    """The drafting state by the server's response, its facts if it has some, and the state in one sentence."""
    if answer.status == 200:
        try:
            facts = _decode(answer.body)
            drafting, description = _drafting(facts, _identity(answer.body))
        except (ValueError, RecursionError):
            return _cannot("its /slipstream does not respond as an engine of Slipstream does")
        return drafting, facts, description
    if answer.status == 404:
        return _cannot(
            "it does not have Slipstream's plugin: start vLLM with --scheduler-cls slipstream_vllm.Scheduler; drafts "
            "by its own --speculative-config are neither controlled nor checked"
        )
    if answer.status in (401, 403):
        return _cannot("its Slipstream plugin refuses the gateway's key: set the right one in spec.engine.apiKeyEnv")
    return UNKNOWN, None, f"its /slipstream returned status {answer.status}"


def _identity(body: bytes) -> str:
    """The document without its changing fields: a server with another identity drafts differently."""
    return repr(sorted((name, bytes(value)) for name, value in _decode_raw(body).items() if name not in _CHANGING))


def _drafting(facts: EngineFacts, identity: str) -> tuple[Drafting, str]:
    vllm = f"slipstream-vllm {facts.plugin} in vLLM {facts.vllm}"
    versions = vllm if facts.vllm else f"the engine {facts.engine} {facts.plugin}"
    if facts.max_draft_length < 1:
        advice = ": start vLLM with --speculative-config" if facts.vllm else ""
        why = f"{_CANNOT}: it runs without speculation ({versions}){advice}"
        return Drafting(withheld=Withheld(reason=Reason.ENGINE_CANNOT, detail=why), resumes=facts.resumes), why
    how = f"{facts.method}, acceptance by {facts.acceptance}"
    drafting = Drafting(
        longest=facts.max_draft_length,
        limit=facts.limit,
        identity=identity,
        adaptive=facts.adaptive,
        seed_equality=facts.acceptance == _EQUALITY,
        resumes=facts.resumes,
        resumes_stops=facts.resumes_stops,
        protects=facts.protects,
    )
    return drafting, f"drafts of up to {facts.max_draft_length} tokens ({how}; {versions})"


def _cannot(why: str) -> tuple[Drafting, None, str]:
    withheld = Withheld(reason=Reason.ENGINE_CANNOT, detail=f"{_CANNOT}: {why}")
    return Drafting(withheld=withheld), None, withheld.detail
