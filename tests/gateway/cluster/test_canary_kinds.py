"""Bad revisions with another target are taken back by what their answers are, good ones are promoted.

API server, gateway and Redis are real, and so are the operator's ledger and state machine; the servers are scripted.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from slipstream_core.manifest.serving import Canary
from slipstream_core.manifest.status import CanaryPhase, CanaryStatus
from slipstream_core.observation import Observation
from slipstream_operator.rollout.analysis.revisions import RevisionFacts, RevisionLedger
from slipstream_operator.rollout.canary import CanaryCase, CanaryServers, advance

from tests.gateway.cluster.compared import Compared, compare, following
from tests.gateway.cluster.scripted_revisions import PROSE, STRUCTURED, TOOLS, Revision, bad, good
from tests.support.http_server import Asked, Reply, answering
from tests.support.redis_server import RedisServer

QUICK = Canary(share=0.5, min_samples=60, max_slowdown=1.0)
DEFAULT = Canary(max_slowdown=1.0)
CANARIES = [pytest.param(QUICK, id="quick"), pytest.param(DEFAULT, id="default-share", marks=pytest.mark.slow)]
RUNNING = CanaryServers(ready=1, serving_ready=1, trouble="", is_hopeless=False, start_s=600.0)
CRASHED = RUNNING._replace(ready=0, trouble="pod canary-0: exited with code 1", is_hopeless=True)
LONGEST_S, CLIENTS = 600.0, 6


class Server(NamedTuple):
    url: str


class Replaced:
    """The server of the new revision, which is another one in each comparison."""

    revision = Revision()

    def answer(self, asked: Asked) -> Reply:
        return self.revision.answer(asked)


class Trial:
    """Comparisons of scripted revisions with one serving revision, with the outcomes `seen` of a gateway."""

    def __init__(self, compared: Compared, new: Replaced, seen: list[Observation], canary: Canary) -> None:
        self._compared, self._new, self._seen, self._canary = compared, new, seen, canary
        self.failed = 0

    async def run(self, revision: Revision) -> tuple[CanaryStatus, int]:
        """The end of the comparison with `revision`, and the number of its requests until then."""
        self._new.revision = revision
        begun_s, read, requests = time.time(), len(self._seen), 0
        pair, name = self._compared.key, self._compared.revision
        ledger = RevisionLedger(pair=pair, revision=name, canary=self._canary, begun_s=begun_s)
        status = advance(advance(None, self._case(None)), self._case(None))
        left = itertools.takewhile(lambda _: time.time() < begun_s + LONGEST_S, itertools.count())
        sending = asyncio.create_task(self._send(left))
        while status.phase is CanaryPhase.COMPARING and not (sending.done() and read == len(self._seen)):
            await asyncio.sleep(0.01)
            arrived, read = self._seen[read:], len(self._seen)
            for outcome in arrived:
                ledger.record(outcome, now_s=time.time())
                requests += outcome.canary
            is_crashed = bool(revision.crashes and requests)
            status = advance(status, self._case(ledger.facts(), CRASHED if is_crashed else RUNNING))
        begun_s = 0.0  # the clients end with their present answers
        await sending
        return status, requests

    def _case(self, facts: RevisionFacts | None, servers: CanaryServers = RUNNING) -> CanaryCase:
        return CanaryCase(
            revision=self._compared.revision,
            serving="old",
            canary=self._canary,
            servers=servers,
            facts=facts,
            has_same_target=False,
            now=datetime.now(UTC),
        )

    async def _send(self, left: Iterator[Any]) -> None:
        luck, url = random.Random(5), f"{self._compared.gateway.url}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=60) as client:

            async def ask() -> None:
                for _ in left:
                    [body] = luck.choices([PROSE, STRUCTURED, TOOLS], [3, 1, 1])
                    reply = await client.post(url, json={"model": "acme", **body})
                    self.failed += reply.status_code != 200

            await asyncio.gather(*(ask() for _ in range(CLIENTS)))


@pytest.fixture(params=CANARIES)
async def trial(
    request: Any, space: Any, serve: Any, tmp_path: Path, free_ports: Callable[[int], list[int]]
) -> AsyncIterator[Trial]:
    canary: Canary = request.param
    redis = RedisServer(tmp_path, free_ports(1)[0])
    serving, new = Revision(), Replaced()
    with answering(serving.answer) as one, answering(new.answer) as other:
        compared = compare(space, serve, redis, serving=Server(one), new=Server(other), share=canary.share)
        async with following(compared.redis, compared.key, every_s=0.01) as seen:
            yield Trial(compared, new, seen, canary)
    redis.stop()


BAD = {
    "garbage": "ContentChanged",
    "truncation": "LengthChanged",
    "wrong language": "ContentChanged",
    "invalid JSON": "ContentChanged",
    "JSON beside the schema": "ContentChanged",
    "refusals": "ContentChanged",
    "repetition": "ContentChanged",
    "slower": "SlowerThanServing",
    "dearer": "DearerThanServing",
    "errors": "ErrorRate",
    "crash": "NotStarted",
    "empty": "ErrorRate",
    "wrong tool": "ContentChanged",
    "unknown tool": "ContentChanged",
}


async def test_bad_revisions_are_taken_back_and_no_request_fails(trial: Trial) -> None:
    ended = {kind: await trial.run(bad(kind)) for kind in BAD}
    assert {kind: status.rule for kind, (status, _) in ended.items()} == BAD
    assert {status.phase for status, _ in ended.values()} == {CanaryPhase.ROLLED_BACK}
    assert trial.failed == 0


async def test_good_revisions_are_promoted(trial: Trial) -> None:
    ended = [await trial.run(good(seed)) for seed in range(20)]
    assert [status.rule for status, _ in ended] == ["Promote"] * 20, [status.message for status, _ in ended]
    assert trial.failed == 0
