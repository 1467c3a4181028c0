"""Two ranks that share the experts of one model make every pass together, whatever the draft lengths of their requests.

A rank that makes another number of passes leaves the other one waiting: its requests get no answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.support.experts import save_experts
from tests.support.preloaded_python import PreloadedPython
from tests.support.vllm_v2 import v2_environment
from tests.vllm.conftest import VllmStarter
from tests.vllm.plugin.client import Answer, Server, summaries, together
from tests.vllm.plugin.run_inside import INSIDE_V2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_STARTUP = Path(__file__).parents[2] / "support/vllm_experts_startup"
RANKS = 2
CLIENTS = 2  # of each rank
REQUESTS = 3  # of each client
TOKENS = 24
LIMITS = (None, None, 0, 2)


class Ranks(NamedTuple):
    """A server. `model` is its model's name."""

    url: str
    model: str


@pytest.fixture(scope="module", params=["v1", "v2"])
def ranks(
    request: pytest.FixtureRequest, vllm_install: VllmInstall, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """With a draft model on the V1 runner, with an EAGLE head on the V2 runner, which refuses a draft model there."""
    folder = tmp_path_factory.mktemp("experts")
    save_experts(TARGET_DIR, folder / "model")
    env = {} if request.param == "v1" else v2_environment()
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_STARTUP), env.get("PYTHONPATH"))))
    python = PreloadedPython(vllm_install, env)
    starter = VllmStarter(python.install, tmp_path_factory, env)
    arguments = ["--data-parallel-size", str(RANKS)]
    if request.param == "v1":
        server = starter(model=str(folder / "model"), extra=arguments)
    else:
        head = {"method": "eagle", "model": _eagle_head(vllm_install, folder), "num_speculative_tokens": 4}
        arguments += ["--async-scheduling", "--speculative-config", json.dumps(head)]
        server = starter(speculative=False, plugin=True, model=str(folder / "model"), extra=arguments)
    yield Ranks(server.url, str(folder / "model"))
    starter.stop()
    python.stop()


def _eagle_head(install: VllmInstall, folder: Path) -> str:
    """Build the heads of the embedded target with the packages of vLLM. Returns: the folder of the EAGLE head."""
    env = {**install.environment(), "PYTHONPATH": str(INSIDE_V2), "SLIPSTREAM_TARGET": str(TARGET_DIR)}
    heads = "import sys, engines, pathlib; print(engines.build_heads(pathlib.Path(sys.argv[1]))['eagle'])"
    done = subprocess.run(
        [str(install.python), "-c", heads, str(folder)], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


class Fuzz:
    """Requests to both ranks with random limits and draft lengths; the server's limit changes meanwhile."""

    def __init__(self, session: aiohttp.ClientSession, ranks: Ranks, bodies: list[dict[str, Any]]) -> None:
        self._draw = random.Random(7)
        self._of_rank = [Server(session, ranks.url, {"X-data-parallel-rank": str(rank)}) for rank in range(RANKS)]
        self._bodies = [{**body, "model": ranks.model} for body in bodies]
        self.plain: list[tuple[int, ...]] = []
        self.answers: list[list[Answer]] = [[] for _ in range(RANKS)]
        self.wrong: list[tuple[int, int, int, tuple[int, ...]]] = []

    async def answer_plainly(self) -> None:
        answers = await together(*(self._of_rank[0].chat(body, 0, max_tokens=TOKENS) for body in self._bodies))
        self.plain = [answer.token_ids for answer in answers]

    async def client(self, rank: int, requests: int, end_s: float) -> None:
        """Send requests to a rank: at least `requests`, and until `end_s`."""
        draw, server, sent = self._draw, self._of_rank[rank], 0
        while sent < requests or time.monotonic() < end_s:
            at, length, limit = draw.randrange(len(self._bodies)), draw.randint(0, 4), draw.randint(1, TOKENS)
            answer: Answer = await server.chat(self._bodies[at], length, max_tokens=limit)
            self.answers[rank].append(answer)
            if answer.token_ids != self.plain[at][:limit]:
                self.wrong.append((at, length, limit, answer.token_ids))
            if draw.random() < 0.1:
                await server.set_limit(draw.choice(LIMITS))
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.5]))  # a rank without requests runs empty steps
            sent += 1

    async def drafted_with_limit_0(self) -> list[int]:
        """Draft tokens of one more answer of each rank."""
        await self._of_rank[0].set_limit(0)
        answers = await together(*(server.chat(self._bodies[0], 4, max_tokens=8) for server in self._of_rank))
        await self._of_rank[0].set_limit(None)
        return [answer.drafted for answer in answers]


async def compare(session: aiohttp.ClientSession, ranks: Ranks, *, seconds: float) -> None:
    fuzz = Fuzz(session, ranks, summaries(6))
    await fuzz.answer_plainly()
    end_s = time.monotonic() + seconds
    await together(*(fuzz.client(rank, REQUESTS, end_s) for rank in range(RANKS) for _ in range(CLIENTS)))
    assert fuzz.wrong == []
    assert await fuzz.drafted_with_limit_0() == [0] * RANKS
    for answers in fuzz.answers:
        assert sum(answer.drafted for answer in answers) > 0
        assert any(answer.drafted == 0 for answer in answers)


async def test_ranks_with_different_lengths_answer_as_without_drafts(
    session: aiohttp.ClientSession, ranks: Ranks
) -> None:
    await compare(session, ranks, seconds=0)


@pytest.mark.slow(in_quarters=False)
async def test_ten_minutes_of_different_lengths(session: aiohttp.ClientSession, ranks: Ranks) -> None:
    await compare(session, ranks, seconds=600)
