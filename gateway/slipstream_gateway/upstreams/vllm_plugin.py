"""Whether a vLLM server has Slipstream's plugin, asked again and again: a server may restart without it, or with it.

Without the plugin vLLM takes the draft length of a request and ignores it, silently. So nothing speculates there until
the server has said what it can do.
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

ASK_EVERY_S = 5.0  # vLLM takes longer than that to restart, and logs each request
_AT_MOST_EVERY_S = 0.2
_log = logging.getLogger(__name__)

UNKNOWN = Drafting(
    withheld=Withheld(
        reason=Reason.ENGINE_UNVERIFIED, detail="the server has not said yet whether it has Slipstream's vLLM plugin"
    )
)


class PluginAnswer(NamedTuple):
    """What the server answered to `GET /slipstream`."""

    status: int
    body: bytes


_Word = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[\w.+:-]*\Z")]  # it is logged


class PluginFacts(msgspec.Struct, frozen=True):
    """What the plugin says of its server. `max_draft_length` is 0 without speculation. `limit` is what an admin has set
    for all requests, None: nothing; the rest does not change while the server runs."""

    plugin: _Word
    max_draft_length: int
    vllm: _Word = ""
    method: _Word | None = None
    acceptance: _Word = ""
    scheduler: str = ""
    limit: int | None = None


_decode = msgspec.json.Decoder(PluginFacts).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LIMIT = "limit"
Ask = Callable[[], Awaitable[PluginAnswer]]


class PluginWatch:
    """Asks one server from its construction to `aclose`, every `every_s` seconds and whenever `ask_now` is called.

    `drafting` is what the server can draft, by its last answer. One that is too busy to answer keeps it; one that
    cannot be reached loses it, because another process may answer next.
    """

    def __init__(self, name: str, ask: Ask, *, every_s: float = ASK_EVERY_S) -> None:
        self.drafting = UNKNOWN
        self._name = name
        self._ask = ask
        self._every_s = every_s
        self._wake = asyncio.Event()
        self._logged = ""
        self._task = asyncio.create_task(self._run())

    def ask_now(self) -> None:
        """Something says that the server may have changed."""
        self._wake.set()

    def lose(self) -> None:
        """The server could not be reached."""
        self.drafting = UNKNOWN
        self._wake.set()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._look()
            except Exception:  # the top of a task: what goes wrong once must not end it
                _log.exception("%s: its plugin could not be asked for", self._name)
            await asyncio.sleep(_AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(self._every_s - _AT_MOST_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        try:
            answer = await self._ask()
        except UpstreamTimeout:
            return
        except SlipstreamError:
            self.drafting = UNKNOWN
            return
        found, said = drafting_of(answer)
        self.drafting = found
        if said != self._logged:
            self._logged = said
            _log.log(logging.INFO if found.withheld is None else logging.WARNING, "%s: %s", self._name, said)


def drafting_of(answer: PluginAnswer) -> tuple[Drafting, str]:
    """What a server can draft by its answer, and the same in one sentence."""
    if answer.status == 200:
        try:
            return _drafting(_decode(answer.body), _identity(answer.body))
        except (ValueError, RecursionError):
            return _cannot("its /slipstream does not answer as Slipstream's vLLM plugin does")
    if answer.status == 404:
        return _cannot(
            "it has no Slipstream plugin: start vLLM with --scheduler-cls slipstream_vllm.Scheduler; drafts by its own "
            "--speculative-config are neither controlled nor checked"
        )
    if answer.status in (401, 403):
        return _cannot("its Slipstream plugin refuses the gateway's key: name it in spec.engine.apiKeyEnv")
    return UNKNOWN, f"its /slipstream answers {answer.status}"


def _identity(body: bytes) -> str:
    """All that the document says but the limit: a server that says something else drafts in another way."""
    return repr(sorted((name, bytes(value)) for name, value in _decode_raw(body).items() if name != _LIMIT))


def _drafting(facts: PluginFacts, identity: str) -> tuple[Drafting, str]:
    versions = f"slipstream-vllm {facts.plugin} in vLLM {facts.vllm}"
    if facts.max_draft_length < 1:
        return _cannot(f"it runs without speculation ({versions}): start vLLM with --speculative-config")
    how = f"{facts.method}, acceptance by {facts.acceptance}"
    drafting = Drafting(longest=facts.max_draft_length, limit=facts.limit, identity=identity)
    return drafting, f"drafts of up to {facts.max_draft_length} tokens ({how}; {versions})"


def _cannot(why: str) -> tuple[Drafting, str]:
    withheld = Withheld(reason=Reason.ENGINE_CANNOT, detail=f"the server cannot take a draft length: {why}")
    return Drafting(withheld=withheld), withheld.detail
