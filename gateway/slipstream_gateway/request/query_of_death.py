"""Requests that break servers ("queries of death", Google's SRE book, chapter 22).

After a server broke with a request, one further server may try, because most servers break for reasons of their own.
A stream that broke after at least `PROGRESS_TOKENS` may try again. Requests of the same content that broke servers
`MAX_RUNS` times are refused for `REFUSED_S`. An answer to a body that broke a server clears its content; an answer to a
variant that broke none does not. An engine that dies may return an internal error before its connections close, so the
server is probed after one. Breaks are counted per gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable

import msgspec
from slipstream_core.errors import BreaksServers, SlipstreamError, UpstreamError, UpstreamFailed
from slipstream_core.types import GenerationRequest

from slipstream_gateway.upstreams.pool import Replica

MAX_RUNS = 2
REFUSED_S = 60.0
PROGRESS_TOKENS = 16
PROBED_AFTER_S = 0.2  # OpenAI's clients retry after 0.5 s
_PROBE_S = 2.0
MAX_KNOWN = 10_000
MAX_DOUBTS = 100
_SAME_BREAK_S = 5.0  # several requests of one content may run on a server when it breaks: one break
# Their JSON, not the texts in it: with one text, other images, tools or grammars are another content.
_CONTENT = (
    "messages",
    "prompt",
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "tools",
    "functions",
    "response_format",
    "text",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_log = logging.getLogger(__name__)


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """A server broke with a request whose content has the hash `content`, and whose body `body`."""

    content: str
    server: str
    body: bytes = b""


class _Breaks(msgspec.Struct):
    """The breaks of one content: their number, the time of the latest, the time of the latest on each server, and the
    bodies, each server's latest."""

    by_server: dict[str, float] = {}
    bodies: dict[str, bytes] = {}
    number: int = 0
    last_s: float = 0.0


class QueriesOfDeath:
    """The breaks of all requests. `known` is empty as long as no server fails. `found` is called for the break that
    leads to refusals."""

    def __init__(
        self,
        *,
        found: Callable[[Break], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found = found
        self._clock = clock
        self.known: dict[str, _Breaks] = {}
        self._doubts: dict[str, list[Break]] = {}  # by server, until its probe
        self._probes: dict[str, asyncio.Task[None]] = {}

    def check(self, pair: str, request: GenerationRequest) -> None:
        """Raises `BreaksServers` if a request with this content is refused now."""
        self._forget()
        breaks = self.known.get(_content(pair, request)) if self.known else None
        if breaks is not None and breaks.number >= MAX_RUNS:
            left_s = breaks.last_s + REFUSED_S - self._clock()
            message = f"Servers broke {breaks.number} times with this request. It is refused for {left_s:.0f} s."
            raise BreaksServers(message, retry_after_s=left_s)

    def failed(self, pair: str, request: GenerationRequest, replica: Replica, error: SlipstreamError) -> None:
        """Records a failed attempt."""
        if not isinstance(error, UpstreamError):
            return
        seen = Break(content=_content(pair, request), server=replica.name, body=_body(request))
        if error.broke:
            self._saw(seen)
        elif isinstance(error, UpstreamFailed):
            doubts = self._doubts.setdefault(seen.server, [])
            if not doubts:
                self._probes[seen.server] = asyncio.get_running_loop().create_task(self._probe(replica))
            if len(doubts) < MAX_DOUBTS:
                doubts.append(seen)

    def answered(self, pair: str, request: GenerationRequest) -> None:
        """Records a whole answer: this body breaks no server."""
        breaks = self.known.get(content := _content(pair, request))
        if breaks is not None and set(breaks.bodies.values()) == {_body(request)}:
            del self.known[content]

    def _saw(self, seen: Break) -> None:
        if self._add(seen):
            _log.error("servers broke %d times with one request, which is refused now: %s", MAX_RUNS, seen.content)
            self._found(seen)

    async def _probe(self, replica: Replica) -> None:
        """Records breaks if the server does not respond after its internal errors."""
        await asyncio.sleep(PROBED_AFTER_S)
        try:
            async with asyncio.timeout(_PROBE_S):
                await replica.upstream.probe()
        except (SlipstreamError, TimeoutError):
            for seen in self._doubts[replica.name]:
                self._saw(seen)
        except Exception as exc:  # the server may have been removed meanwhile, with its client
            _log.debug("a server could not be probed: %s: %s", replica.name, type(exc).__name__)
        finally:
            del self._doubts[replica.name], self._probes[replica.name]

    def _add(self, seen: Break) -> bool:
        """Counts a break. Returns whether requests of its content are refused from now on."""
        breaks, now_s = self._of(seen.content), self._clock()
        breaks.bodies[seen.server] = seen.body
        breaks.last_s = now_s
        before_s = breaks.by_server.get(seen.server)
        breaks.by_server[seen.server] = now_s
        if before_s is not None and now_s - before_s < _SAME_BREAK_S:
            return False
        breaks.number += 1
        return breaks.number == MAX_RUNS

    def _forget(self) -> None:
        """Drops old breaks. The dictionary is in the order of their last times."""
        now_s = self._clock()
        while self.known and next(iter(self.known.values())).last_s + REFUSED_S <= now_s:
            del self.known[next(iter(self.known))]

    def _of(self, content: str) -> _Breaks:
        breaks = self.known.pop(content, None) or _Breaks()
        self.known[content] = breaks
        if len(self.known) > MAX_KNOWN:
            del self.known[next(iter(self.known))]
        return breaks


def _body(request: GenerationRequest) -> bytes:
    return hashlib.blake2b(request.raw, digest_size=16).digest()


def _content(pair: str, request: GenerationRequest) -> str:
    """A hash of what a server computes on: without seed, limits and sampling, which clients vary between retries."""
    fields = _decode_fields(request.raw)
    content = [(name, bytes(fields[name])) for name in _CONTENT if name in fields]
    parts = (pair, request.endpoint, sorted(request.features), content)
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()
