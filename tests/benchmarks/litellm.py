"""What the callback adds to a request through LiteLLM's proxy.

Three proxies on one core: without a callback, with an empty one, for which LiteLLM does the same work, and with
Slipstream's. The clients and the server that answers at once share the other core. Each request is sent to all, in
alternating order, alone. Printed: the median latency of each, and the median of the differences of pairs, with its
interval; and the processor time of each proxy by request, which includes the work after an answer and while idle.
Before that: the decision alone, in a process without LiteLLM, back to back and as often as in a proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from slipstream_gateway.litellm_proxy.proxy_requests import ProxyRequests

from tests.benchmarks import canned
from tests.benchmarks.harness import Interval, Option, Report, benchmark, interval, percentile, turns
from tests.gateway.litellm_proxy.conftest import MANIFEST
from tests.gateway.litellm_proxy.scripted_vllm import ScriptedVllm
from tests.support.litellm_proxy import LiteLlmProxy, vllm_model
from tests.support.polling import soon

WAYS = ("LiteLLM alone", "empty callback", "Slipstream")
_EMPTY = """
from litellm.integrations.custom_logger import CustomLogger

class Empty(CustomLogger):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        return data

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        pass

callback = Empty()
"""
_CALLBACKS: Mapping[str, Mapping[str, Any]] = {WAYS[0]: {"callback": None}, WAYS[1]: {"callback": _EMPTY}}
_WARM_UP = 100
_ASK = "Write a Python function that parses a CSV file and validates each row."
_MATERIAL = " The customer reported a late delivery and asked to be called back."
_BODY = {"model": "acme", "messages": [{"role": "user", "content": _ASK}], "max_tokens": 400}
PROMPTS = {"70 characters": _ASK, "7 000 characters": _ASK + 105 * _MATERIAL}


@contextlib.contextmanager
def _proxies(folder: Path, server: ScriptedVllm) -> Iterator[Mapping[str, LiteLlmProxy]]:
    with contextlib.ExitStack() as stack:
        started = {}
        for name in WAYS:
            own = folder / name
            own.mkdir()
            manifest = MANIFEST.format(url=server.url) + "  decision: expected\n"
            started[name] = LiteLlmProxy(
                own,
                models=[vllm_model("acme", server.url)],
                manifest=manifest,
                cores=[canned.GATEWAY_CORE],
                **_CALLBACKS.get(name, {}),
            )
            stack.callback(started[name].stop)
        yield started


async def _alone(args: argparse.Namespace, report: Report, manifest: Path) -> None:
    """The decision in this process: its processor time, because other programs do not count."""
    requests = ProxyRequests(manifest)
    await requests.started()
    for pause_ms in (0.0, args.pause_ms):
        for size, prompt in PROMPTS.items():
            fields, took_ms = {**_BODY, "messages": [{"role": "user", "content": prompt}]}, []
            for _ in range(args.requests):
                owner = _Owner()
                began_s = time.thread_time()
                requests.begin(fields, {}, owner=owner, request_id="1", key_id="key")
                took_ms.append(1e3 * (time.thread_time() - began_s))
                requests.drop("1")
                await asyncio.sleep(pause_ms / 1e3)
            pace = f"every {pause_ms:g} ms" if pause_ms else "back to back"
            report.row(f"decision {pace}, {size}", p50_ms=percentile(took_ms, 0.5))
    await requests.aclose()


class _Owner:
    """LiteLLM's object of a request."""


async def _took_ms(client: httpx.AsyncClient, fields: Mapping[str, Any]) -> float:
    began = time.perf_counter()
    response = await client.post("/v1/chat/completions", json=fields)
    took_ms = 1e3 * (time.perf_counter() - began)
    response.raise_for_status()
    return took_ms


async def _measure(args: argparse.Namespace, report: Report, server: ScriptedVllm, started: Mapping[str, Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(proxy.client()) for name, proxy in started.items()}
        processes = {name: psutil.Process(proxy.pid) for name, proxy in started.items()}

        async def drafts() -> bool:
            await _took_ms(clients[WAYS[-1]], _BODY)
            return bool(server.bodies[-1].get("vllm_xargs", {}).get("slipstream_draft_length"))

        await soon(drafts, "drafts", seen=started[WAYS[-1]].log)
        for stream in (False, True):
            for size, prompt in PROMPTS.items():
                fields = {**_BODY, "messages": [{"role": "user", "content": prompt}], "stream": stream}
                await _compare(args, report, clients, processes, fields, f"{'stream' if stream else 'whole'}, {size}")


async def _compare(
    args: argparse.Namespace,
    report: Report,
    clients: Mapping[str, httpx.AsyncClient],
    processes: Mapping[str, psutil.Process],
    fields: Mapping[str, Any],
    title: str,
) -> None:
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    for name in WAYS:
        for _ in range(min(args.requests, _WARM_UP)):
            await _took_ms(clients[name], fields)
    before_s = {name: canned.cpu_s(process) for name, process in processes.items()}
    for _, name in turns(WAYS, args.requests, warm_up=0):
        took[name].append(await _took_ms(clients[name], fields))
        await asyncio.sleep(args.pause_ms / 1e3)  # LiteLLM logs the last answer, and would delay this one
    cpu_ms = {name: 1e3 * (canned.cpu_s(processes[name]) - before_s[name]) / args.requests for name in WAYS}
    for name in WAYS:
        report.row(f"{name}: {title}", p50_ms=percentile(took[name], 0.5), cpu_ms=cpu_ms[name])
    for base in WAYS[:-1]:
        pairs = zip(took[WAYS[-1]], took[base], strict=True)
        added: Interval = interval(median, [after - before for after, before in pairs])
        report.row(f"added to {base}: {title}", p50_ms=added, cpu_ms=cpu_ms[WAYS[-1]] - cpu_ms[base])


def measure(args: argparse.Namespace, report: Report) -> None:
    os.sched_setaffinity(0, {canned.OTHER_CORE})
    server = ScriptedVllm()
    try:
        with tempfile.TemporaryDirectory() as folder, _proxies(Path(folder), server) as started:
            asyncio.run(_alone(args, report, started[WAYS[-1]].manifest))
            asyncio.run(_measure(args, report, server, started))
            logs = started[WAYS[-1]].log()
            report.require("a request could not be" not in logs, "the callback failed")
            decided = sum("vllm_xargs" in each for each in server.bodies)
            report.require(decided >= len(server.bodies) / 3, f"only {decided} of {len(server.bodies)} were decided")
    finally:
        server.stop()


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        requests=Option(1000, 10, "rounds of requests of each kind"),
        pause_ms=Option(5.0, 1.0, "after each request"),
    )
