"""A small client of vLLM's own port: one request, counters, control. For tests and benchmarks of the plugin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from slipstream_engine.embedded.workload import workload

from tests.support.metrics import total
from tests.support.polling import soon

MODEL = "slipstream-embedded"
OWN_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}


class Answer(NamedTuple):
    """One answer. `drafts`, `drafted` and `accepted` are the server's counts for this request."""

    id: str
    token_ids: tuple[int, ...]
    finish: str
    drafts: int
    drafted: int
    accepted: int


class Refused(Exception):
    """The server answered with an error. `body` is its JSON."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status
        self.body = body


def summaries(count: int, seed: int = 11) -> list[dict[str, Any]]:
    """Call summaries of the embedded workload, which its draft model predicts well, as chat bodies."""
    return [
        {"messages": item.messages, "max_tokens": item.max_tokens} for item in workload(seed, count, {"summary": 1.0})
    ]


class Server:
    """vLLM's port at `url`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._url = url
        self._headers = dict(headers or {})

    async def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Any:
        """The JSON of the answer. Raises: `Refused`."""
        headers = {**self._headers, **(headers or {})}
        async with self._session.request(method, self._url + path, json=body, headers=headers) as response:
            answer = await response.json(content_type=None)
            if response.status != 200:
                raise Refused(response.status, answer)
            return answer

    async def last_event(self, path: str, body: Mapping[str, Any]) -> Any:
        """The last event of the stream that answers `body`, before `[DONE]`."""
        async with self._session.post(self._url + path, json={**body, "stream": True}) as response:
            events = (await response.text()).split("\n\n")
        return json.loads(events[-3].removeprefix("data: "))

    async def chat(
        self,
        body: Mapping[str, Any],
        length: int | None = None,
        *,
        label: str | None = None,
        request_id: str | None = None,
        **more: Any,
    ) -> Answer:
        """One chat completion, greedy unless `more` says otherwise."""
        xargs: dict[str, Any] = {} if length is None else {"slipstream_draft_length": length}
        if label is not None:
            xargs["slipstream_class"] = label
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        whole = {"model": MODEL, "temperature": 0, "return_token_ids": True, **body, **more}
        if xargs:
            whole["vllm_xargs"] = xargs
        answer = await self.call("POST", "/v1/chat/completions", whole, headers)
        counts = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        [choice] = answer["choices"]
        return Answer(
            answer["id"],
            tuple(choice["token_ids"]),
            choice["finish_reason"],
            *(counts.get(name, 0) for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")),
        )

    async def set_limit(self, limit: int | None) -> None:
        await self.call("PUT", "/slipstream/limit", {"limit": limit})

    async def counters(self) -> dict[str, float]:
        """vLLM's own counters by the names of `OWN_COUNTERS`; sums of the plugin's have `plugin_` before the name."""
        families = await self._families()
        found = {name: _sum(families, family) for name, family in OWN_COUNTERS.items()}
        return found | {f"plugin_{name}": _sum(families, f"slipstream_vllm_{name}") for name in OWN_COUNTERS}

    async def counter(self, name: str) -> float:
        """The sum over the labels of the counter `name`, without parsing the other metrics."""
        async with self._session.get(f"{self._url}/metrics") as response:
            return total(await response.text(), name)

    async def labels(self) -> set[tuple[str, str]]:
        """Class and draft length of every series of `slipstream_vllm_drafts_total`."""
        samples = (await self._families()).get("slipstream_vllm_drafts", [])
        return {(labels["request_class"], labels["draft_length"]) for labels, _ in samples}

    async def by_label(self, counter: str, label: str) -> dict[str, float]:
        """The values of `counter` by one of its labels."""
        samples = (await self._families()).get(counter, [])
        return {labels[label]: sum(n for other, n in samples if other[label] == labels[label]) for labels, _ in samples}

    async def cache_usage(self) -> float:
        """Share of the KV cache that requests hold, 0..1."""
        return _sum(await self._families(), "vllm:kv_cache_usage_perc")

    async def running(self) -> float:
        """Requests that run or wait."""
        families = await self._families()
        return _sum(families, "vllm:num_requests_running") + _sum(families, "vllm:num_requests_waiting")

    async def _families(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        async with self._session.get(f"{self._url}/metrics") as response:
            text = await response.text()
        return {
            family.name: [(one.labels, one.value) for one in family.samples if not one.name.endswith("_created")]
            for family in text_string_to_metric_families(text)
        }


def _sum(families: Mapping[str, list[tuple[dict[str, str], float]]], name: str) -> float:
    return sum(value for _, value in families.get(name, []))


async def together(*calls: Any) -> list[Any]:
    """Results of requests that are in flight at the same time."""
    return list(await asyncio.gather(*calls))


async def drafting(server: Server) -> None:
    """Wait until requests that were just sent have drafted for some steps."""
    before = (await server.counters())["drafts"]

    async def has_drafted() -> bool:
        return (await server.counters())["drafts"] >= before + 3

    await soon(has_drafted, "three steps with drafts")
