"""How soon parity finds sampled answers that are not the target's, and how long it keeps quiet: by real answers.

Three vLLM servers run with the embedded pair: the target alone, the draft alone, and the target that
speculates without Slipstream's plugin, whose CPU sampler gives garbage. Each request is a held-out one of the embedded
workload with one of several settings; each answer is scored by the target alone. Kinds of speculative answers:

- `plain`: of the target itself: what a lossless engine gives;
- `garbage`: of the server with the broken sampler;
- `drift`: of the target, but for one position in about `WRONG_EVERY`, where the draft's first choice stands though the
  target drew another token: a draft token that was accepted wrongly.

The report draws answers at random, with replacement, and runs the test of `request.parity.score` over them. `--folder`
keeps the answers of each kind: those that are there are not collected again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import aiohttp
import msgspec
from slipstream_core.manifest.vllm_command import Speculation
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.embedded.workload import Request, workload
from slipstream_gateway.request.likelihood import Factors, Sampling, factors_of
from slipstream_gateway.request.parity.score import ALARM_AT, SampledTest, ScoredPair
from slipstream_gateway.upstreams.scores import TOP, read_scores
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_server import VllmLaunch, VllmServer

from tests.benchmarks.harness import Option, Report, benchmark, percentile
from tests.support.ports import lasting_ports

WRONG_EVERY = 50
MOST_ANSWERS = 5_000
AT_ONCE = 6
SETTINGS = (
    Sampling(),
    Sampling(temperature=0.7),
    Sampling(temperature=1.3),
    Sampling(top_p=0.9),
    Sampling(temperature=0.7, top_p=0.9),
)
_END = 4  # of the embedded tokenizer: the end of a turn


class Row(msgspec.Struct, frozen=True):
    """One pair of answers: what speaks against each. `wrong` counts the wrong tokens among `tokens`."""

    kind: str
    speculative: Factors
    plain: Factors
    tokens: int
    wrong: int = 0


class Servers:
    """The three servers, asked by one HTTP session."""

    def __init__(self, session: aiohttp.ClientSession, target: str, draft: str, garbage: str) -> None:
        self._session = session
        self.target, self.draft, self.garbage = target, draft, garbage

    async def post(self, url: str, path: str, body: dict[str, object]) -> bytes:
        async with self._session.post(f"{url}{path}", json={"model": "m", **body}) as response:
            data = await response.read()
            response.raise_for_status()
            return data

    async def prompt(self, request: Request) -> list[int]:
        body = {"messages": request.messages, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        return list(msgspec.json.decode(await self.post(self.target, "/v1/chat/completions", body))["prompt_token_ids"])

    async def answer(self, url: str, prompt: Sequence[int], limit: int, sampling: Sampling, seed: int) -> list[int]:
        body = {
            "prompt": list(prompt),
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed,
            "return_token_ids": True,
        }
        return list(msgspec.json.decode(await self.post(url, "/v1/completions", body))["choices"][0]["token_ids"])

    async def rows(self, url: str, prompt: Sequence[int], answer: Sequence[int]) -> bytes:
        body = {"prompt": [*prompt, *answer], "max_tokens": 1, "temperature": 0, "prompt_logprobs": TOP}
        return await self.post(url, "/v1/completions", body)

    async def factors(self, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling) -> Factors:
        return factors_of(read_scores(await self.rows(self.target, prompt, answer), len(prompt), answer), sampling)

    async def first_choices(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """The draft's most likely token at each position of `answer`."""
        rows = msgspec.json.decode(await self.rows(self.draft, prompt, answer))["choices"][0]["prompt_logprobs"]
        return [int(min(row, key=lambda token: row[token]["rank"])) for row in rows[len(prompt) :]]


async def _drifting(
    servers: Servers, prompt: list[int], limit: int, sampling: Sampling, rng: random.Random
) -> tuple[list[int], int]:
    """An answer with wrong tokens, and how many."""
    answer: list[int] = []
    wrong, wait = 0, int(rng.expovariate(2.0 / WRONG_EVERY))
    while len(answer) < limit:
        seed = rng.getrandbits(31)
        whole = answer + await servers.answer(servers.target, prompt + answer, limit - len(answer), sampling, seed)
        choices = await servers.first_choices(prompt, whole)
        places = range(max(wait, len(answer)), len(whole))
        at = next((place for place in places if choices[place] != whole[place]), None)
        if at is None:
            return whole, wrong
        answer, wrong = [*whole[:at], choices[at]], wrong + 1
        wait = at + 1 + int(rng.expovariate(2.0 / WRONG_EVERY))  # and then until the draft is wrong: as long again
        if answer[-1] == _END:
            break
    return answer, wrong


async def _row(servers: Servers, kind: str, request: Request, rng: random.Random) -> Row | None:
    sampling, limit = rng.choice(SETTINGS), request.max_tokens
    prompt, wrong = await servers.prompt(request), 0
    if kind == "drift":
        answer, wrong = await _drifting(servers, prompt, limit, sampling, rng)
    else:
        url = servers.garbage if kind == "garbage" else servers.target
        answer = await servers.answer(url, prompt, limit, sampling, rng.getrandbits(31))
    plain = await servers.answer(servers.target, prompt, limit, sampling, rng.getrandbits(31))
    if not answer or not plain:
        return None
    return Row(
        kind,
        await servers.factors(prompt, answer, sampling),
        await servers.factors(prompt, plain, sampling),
        len(answer),
        wrong,
    )


async def _each(make: Sequence[Callable[[], Awaitable[Row | None]]]) -> list[Row]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(asked: Callable[[], Awaitable[Row | None]]) -> Row | None:
        async with places:
            return await asked()

    return [row for row in await asyncio.gather(*map(one, make)) if row is not None]


def collect(folder: Path, counts: dict[str, int], seed: int) -> None:
    """Writes one file of rows for each kind that has none yet."""
    missing = {kind: count for kind, count in counts.items() if not (folder / f"{kind}.jsonl").is_file()}
    if not missing:
        return
    with ExitStack() as stack:
        urls = list(_started(stack, folder))
        for kind, count in missing.items():
            rows = asyncio.run(_collected(urls, kind, count, seed))
            (folder / f"{kind}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


async def _collected(urls: list[str], kind: str, count: int, seed: int) -> list[Row]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900.0)) as session:
        servers = Servers(session, *urls)

        def asked(index: int, request: Request) -> Callable[[], Awaitable[Row | None]]:
            return lambda: _row(servers, kind, request, random.Random(f"{kind} {seed} {index}"))

        return await _each([asked(index, request) for index, request in enumerate(workload(seed, count))])


def _started(stack: ExitStack, folder: Path) -> Iterator[str]:
    """The addresses of target, draft, and broken server."""
    install = install_vllm(lambda line: print(line, file=sys.stderr, flush=True))
    broken = Speculation(method="draft_model", tokens=4, draft=str(DRAFT_DIR))
    for model, speculation in ((TARGET_DIR, None), (DRAFT_DIR, None), (TARGET_DIR, broken)):
        launch = VllmLaunch(
            model=str(model), served_name="m", speculation=speculation, plugin=False, context_tokens=2048
        )
        [port] = lasting_ports(1)
        server = VllmServer(install=install, launch=launch, run_dir=folder, port=port)
        stack.callback(server.stop)
        server.wait_ready(timeout_s=600.0)
        yield server.url


def answers_until_alarm(rows: Sequence[Row], rng: random.Random) -> float:
    """How many answers of `rows`, drawn at random, until the alarm; infinite beyond `MOST_ANSWERS`."""
    test = SampledTest()
    for count in range(1, MOST_ANSWERS + 1):
        row = rng.choice(rows)
        test.add(ScoredPair(speculative=row.speculative, plain=row.plain))
        if test.alarm:
            return count
    return float("inf")


def most_evidence(rows: Sequence[Row], answers: int, rng: random.Random) -> tuple[float, bool]:
    """The largest evidence among so many answers, and whether there was an alarm. Each pair goes either way round, as
    both are the target's."""
    test, most = SampledTest(), 0.0
    for _ in range(answers):
        row = rng.choice(rows)
        sides = (row.speculative, row.plain) if rng.random() < 0.5 else (row.plain, row.speculative)
        test.add(ScoredPair(speculative=sides[0], plain=sides[1]))
        most = max(most, test.evidence)
    return most, test.alarm


def read(folder: Path, kind: str) -> list[Row]:
    return [msgspec.json.decode(line, type=Row) for line in (folder / f"{kind}.jsonl").read_bytes().splitlines()]


def measure(args: argparse.Namespace, report: Report) -> None:
    rng = random.Random(1)
    with ExitStack() as stack:
        folder = Path(args.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        collect(folder, {kind: getattr(args, kind) for kind in ("plain", "garbage", "drift")}, args.seed)
        plain, garbage, drift = (read(folder, kind) for kind in ("plain", "garbage", "drift"))
    for name, rows in (("garbage", garbage), ("drift", drift)):
        found = [answers_until_alarm(rows, rng) for _ in range(args.runs)]
        wrong = sum(row.wrong for row in rows)
        report.row(
            f"{name}: answers until the alarm",
            tokens_per_wrong=sum(row.tokens for row in rows) / wrong if wrong else None,
            median=median(found),
            p99=percentile(found, 0.99),
            longest=max(found),
            runs=args.runs,
        )
    for _ in range(3):
        most, alarm = most_evidence(plain, args.quiet, rng)
        report.row(f"{args.quiet} plain answers", largest_evidence=most, alarm_at=ALARM_AT)
        report.require(not alarm, "an alarm for plain answers")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        folder=Option("", "", "keep the answers here"),
        plain=Option(1000, 2, "pairs of plain answers"),
        garbage=Option(60, 2, "pairs with garbage"),
        drift=Option(200, 2, "pairs with wrong tokens"),
        seed=Option(1, 1, "of requests and settings"),
        runs=Option(500, 2, "until an alarm, of each kind"),
        quiet=Option(100_000, 20, "plain answers in a row"),
    )
