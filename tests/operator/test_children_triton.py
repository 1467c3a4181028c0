"""The children of a pair and real programs: Triton started as its Deployment says, and the preflight command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc.aio as grpc_client
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.settings import resolve_source
from slipstream_operator.reconcile.pair import reconcile_pair
from slipstream_operator.types import Observed
from slipstream_tools.up.processes import Child
from slipstream_tools.up.triton_install import find_triton, link_backends, link_libraries, triton_environment
from slipstream_tools.up.triton_server import was_starved
from tritonclient.grpc import InferInput
from tritonclient.utils import InferenceServerException

from tests.operator.pair_objects import EMBEDDED_SPEC, JSON, children, live_deployment, pair_object, pod, template
from tests.support.pipe_transport import PipeTransport, piped
from tests.support.polling import PATIENCE_S, eventually, soon

START_TIMEOUT_S = 90.0
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
KEPT_LOG_LINES, KEPT_LOG_BYTES = 80, 2048  # what the kubelet takes from the end of a log
# A container whose pod shares no process namespace has its own, where its program cannot be killed from inside.
FIRST_PROCESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
FreePorts = Callable[[int], list[int]]
# Each goes on for ever under greedy decoding, with drafts that are all rejected: seconds of work, a token in a step.
ENDLESS, TOKENS = "abdeabdeab", 400


class Pod:
    """Triton as the pair's Deployment starts it, with its volumes laid out as Kubernetes does."""

    def __init__(self, raw: JSON, folder: Path, ports: list[int], *, is_ipv6: bool = False) -> None:
        self.grpc, self.http, self.metrics = ports
        self.host = "[::1]" if is_ipv6 else "127.0.0.1"
        self._prefix = f"slipstream_op_{self.grpc}_"
        made = children(raw, is_ipv6=is_ipv6)
        spec = made["Deployment"]["spec"]["template"]["spec"]
        self.container = spec["containers"][0]
        self.grace_period_s = spec["terminationGracePeriodSeconds"]
        repository = self._mount_model(spec, made["ConfigMap"], folder)
        install = find_triton()
        backends, libraries = link_backends(install, folder / "backends"), link_libraries(install, folder / "libraries")
        assert self.container["command"] == ["tritonserver"]
        self._launch = lambda: Child(
            name="Triton",
            command=[
                *([] if spec.get("shareProcessNamespace") else FIRST_PROCESS),
                str(install.binary),
                *self._arguments(repository),
                f"--backend-directory={backends}",
                f"--backend-config=python,shm-region-prefix-name={self._prefix}",
                *([] if is_ipv6 else [f"--{server}-address=127.0.0.1" for server in ("http", "grpc", "metrics")]),
                "--allow-gpu-metrics=false",
            ],
            log_path=folder / "triton.log",
            env={**triton_environment(libraries), "OMP_NUM_THREADS": "1"},
        )
        self.child = self._launch()

    def _mount_model(self, spec: JSON, config_map: JSON, folder: Path) -> Path:
        """The ConfigMap at its mount path, below `folder`, with the links by which its content is swapped."""
        [volume] = [volume for volume in spec["volumes"] if "configMap" in volume]
        [mount] = [mount for mount in self.container["volumeMounts"] if mount["name"] == volume["name"]]
        mounted = folder / mount["mountPath"].lstrip("/")
        content = mounted / "..2026_11_20_12_00_00.123456789"
        for item in volume["configMap"]["items"]:
            file = content / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(config_map["data"][item["key"]], encoding="utf-8")
        (mounted / "..data").symlink_to(content.name)
        for entry in content.iterdir():
            (mounted / entry.name).symlink_to(f"..data/{entry.name}")
        return folder

    def _arguments(self, root: Path) -> list[str]:
        """The container's, with its paths below `root` and its ports on this machine."""
        moved = {
            "--grpc-port=8001": f"--grpc-port={self.grpc}",
            "--http-port=8000": f"--http-port={self.http}",
            "--metrics-port=8002": f"--metrics-port={self.metrics}",
        }
        return [
            moved.get(argument) or argument.replace("--model-repository=/", f"--model-repository={root}/")
            for argument in self.container["args"]
        ]

    def wait_ready(self) -> None:
        """Until its readiness probe succeeds."""

        def is_ready() -> bool:
            if was_starved(self.child):
                self.child = self._launch()
            assert self.child.exit_status() is None, self.child.log_tail(40)
            return self.is_ready()

        eventually(is_ready, "the readiness probe succeeds", seen=lambda: self.child.log_tail(40))

    def is_ready(self) -> bool:
        path = self.container["readinessProbe"]["httpGet"]["path"]
        try:
            return httpx.get(f"http://{self.host}:{self.http}{path}", timeout=2.0).is_success
        except httpx.HTTPError:
            return False

    def has_metrics(self) -> bool:
        return "slipstream" in httpx.get(f"http://{self.host}:{self.metrics}/metrics", timeout=2.0).text

    async def complete(self, **body: Any) -> JSON:
        """One whole text completion."""
        transport = PipeTransport(f"{self.host}:{self.grpc}", "acme")
        async with httpx.AsyncClient(base_url="http://triton", transport=transport, timeout=60.0) as http:
            response = await http.post("/v1/completions", json=body)
        answer: JSON = response.raise_for_status().json()
        return answer

    def stop(self) -> None:
        self.child.stop(timeout_s=10.0)
        for region in Path("/dev/shm").glob(f"{self._prefix}*"):
            region.unlink(missing_ok=True)


@contextmanager
def running(raw: JSON, folder: Path, ports: list[int], *, is_ipv6: bool = False) -> Iterator[Pod]:
    folder.mkdir()
    server = Pod(raw, folder, ports, is_ipv6=is_ipv6)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def swap_tokens(tokenizer_file: Path) -> str:
    """Give two tokens each other's id; the one that is told first."""
    tokenizer = json.loads(tokenizer_file.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokenizer_file.write_text(json.dumps(tokenizer))
    return min(first, second)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A volume with a target, a draft that fits, and `misfit`, a draft whose tokenizer is another."""
    folder = tmp_path_factory.mktemp("volume")
    shutil.copytree(TARGET_DIR, folder / "target")
    for name in ("draft", "misfit"):
        shutil.copytree(resolve_source("embedded:draft"), folder / name)
    (folder / "misfit.txt").write_text(swap_tokens(folder / "misfit" / "tokenizer.json"))
    return folder


def pair_on(volume: Path, *, draft: str) -> JSON:
    serving = {"gpus": 0, "storage": {"claim": "weights", "mountPath": str(volume)}, "drainSeconds": 150}
    return pair_object(
        EMBEDDED_SPEC, target={"source": "target"}, draft={"kind": "model", "source": draft}, serving=serving
    )


def run_preflight(raw: JSON, folder: Path) -> JSON:
    """Run the init container's command as the kubelet would; its status afterwards."""
    [container] = template(raw)["spec"]["initContainers"]
    report = folder / "termination-log"
    command = [
        argument.replace("$$", "$").replace(container["terminationMessagePath"], str(report))
        for argument in container["command"]
    ]
    assert command[0] == "python"
    ended = subprocess.run(
        [sys.executable, *command[1:]], timeout=60, check=False, capture_output=True, env={**os.environ, "HOME": "/tmp"}
    )
    terminated = {"exitCode": ended.returncode, "message": report.read_text()}
    return {"name": container["name"], "ready": ended.returncode == 0, "state": {"terminated": terminated}}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("draft", "status", "reason"),
    [
        ("draft", "True", "SameTokenizer"),
        ("misfit", "False", "TokenizerMismatch"),
        ("nowhere", "Unknown", "NotChecked"),
    ],
)
def test_the_preflight_command_decides_what_the_status_says(
    volume: Path, tmp_path: Path, draft: str, status: str, reason: str
):
    raw = pair_on(volume, draft=draft)
    seen = pod(raw, initContainerStatuses=[run_preflight(raw, tmp_path)])
    live = live_deployment(raw, replicas=1, ready=0)
    made = reconcile_pair(Observed(raw=raw, deployment=live, pods=(seen,)), NOW)
    said = {condition.type: condition for condition in made.status.conditions}
    compatible = said["TokenizerCompatible"]
    assert (compatible.status, compatible.reason) == (status, reason)
    if draft == "misfit":
        assert f"first, token {(volume / 'misfit.txt').read_text()!r}" in compatible.message
    if draft == "nowhere":
        assert said["Ready"].reason == "PreflightFailed"
        assert f"no config.json in {volume / 'nowhere'}" in said["Ready"].message


async def test_triton_serves_the_target_of_a_pair_whose_draft_does_not_fit(
    volume: Path, tmp_path: Path, free_ports: FreePorts
):
    with running(pair_on(volume, draft="misfit"), tmp_path / "pod", free_ports(3)) as server:
        answer = await server.complete(prompt="The order", max_tokens=8, temperature=0.0)
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


async def test_triton_in_a_pod_with_ipv6_first_serves_its_three_ports_there(
    volume: Path, tmp_path: Path, free_ports: FreePorts
):
    with running(pair_on(volume, draft="draft"), tmp_path / "pod", free_ports(3), is_ipv6=True) as server:
        assert server.has_metrics()
        answer = await server.complete(prompt="The order", max_tokens=8, temperature=0.0)
        assert answer["usage"]["completion_tokens"] == 8
        for host in ("[::1]", "127.0.0.1"):  # gateways may connect to the other family's address
            async with grpc_client.InferenceServerClient(f"{host}:{server.grpc}") as client:
                assert await client.is_model_ready("acme")


def test_a_server_that_cannot_load_says_why_in_the_pairs_status(tmp_path: Path, free_ports: FreePorts):
    target, serving = {"source": "nowhere"}, {"storage": {"claim": "weights", "mountPath": "/models"}}
    raw = pair_object(EMBEDDED_SPEC, target=target, draft={"kind": "ngram", "source": None}, serving=serving)
    server = Pod(raw, tmp_path, free_ports(3))
    try:
        assert server.child.wait(START_TIMEOUT_S)
        assert server.container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        message = server.child.log_tail(KEPT_LOG_LINES).encode()[-KEPT_LOG_BYTES:].decode(errors="replace")
    finally:
        server.stop()
    ended = {"exitCode": 1, "reason": "Error", "message": message}
    crashed = {"name": "triton", "ready": False, "restartCount": 1, "lastState": {"terminated": ended}}
    seen = Observed(raw=raw, deployment=live_deployment(raw, ready=0), pods=(pod(raw, containerStatuses=[crashed]),))
    ready = {condition.type: condition for condition in reconcile_pair(seen, NOW).status.conditions}["Ready"]
    assert (ready.status, ready.reason) == ("False", "CrashLoop")
    assert ready.message.endswith("checkpoint '/models/nowhere': there is no config.json in /models/nowhere")


class Stream:
    """A stream of one long answer: its tokens as they come, and how it ended."""

    def __init__(self, client: grpc_client.InferenceServerClient, *, text: str = "a", tokens: int = TOKENS) -> None:
        self.token_ids: list[int] = []
        self.ended: str | None = None
        self.sent, self.begun = asyncio.Event(), asyncio.Event()
        self._text = b""
        body = {
            "prompt": text,
            "temperature": 0,
            "max_tokens": tokens,
            "stream": True,
            "return_token_ids": True,
            "vllm_xargs": {"slipstream_draft_length": 2},
        }
        data = np.frombuffer(piped("POST", "/v1/completions", json.dumps(body).encode()), dtype=np.uint8)
        tensor = InferInput("request", [len(data)], "UINT8")
        tensor.set_data_from_numpy(data)

        async def requests() -> AsyncIterator[JSON]:
            yield {"model_name": "acme", "inputs": [tensor]}
            self.sent.set()

        self._responses = client.stream_infer(requests())

    async def step(self) -> bool:
        """Take the next response; False when it had the last token."""
        result, error = await anext(aiter(self._responses))
        self.begun.set()
        if error is not None:
            self.ended = f"error: {error.message()}"
            return False
        self._text += result.as_numpy("response").tobytes()
        *events, self._text = self._text.split(b"\n\n")
        for event in events:
            _, _, data = event.partition(b"data: ")
            if data != b"[DONE]":
                [choice] = json.loads(data)["choices"]
                self.token_ids += choice["token_ids"]
                self.ended = choice["finish_reason"]
        return self.ended is None

    async def run(self) -> None:
        """To the end of the call. A call that the client ends first may keep its model loaded: Triton 2.51 waits for
        one more response when the cancellation arrives between the last response and the end of the call."""
        while await self.step():
            pass
        async for _ in self._responses:
            pass


async def test_a_change_of_weights_drops_no_answer(volume: Path, tmp_path: Path, free_ports: FreePorts):
    """The old pod leaves while it streams, and the new one has taken over, as a rolling update has it."""
    ports = free_ports(6)
    raw = pair_on(volume, draft="draft")
    changed = pair_object(raw["spec"], target={"revision": "2"})
    assert template(changed)["metadata"]["annotations"] != template(raw)["metadata"]["annotations"]
    with running(raw, tmp_path / "old", ports[:3]) as old, running(changed, tmp_path / "new", ports[3:]) as new:
        async with (
            grpc_client.InferenceServerClient(f"127.0.0.1:{old.grpc}") as to_old,
            grpc_client.InferenceServerClient(f"127.0.0.1:{new.grpc}") as to_new,
        ):
            leaving = [Stream(to_old, text=text) for text in ENDLESS[:6]]
            await asyncio.gather(*(stream.step() for stream in leaving))
            # preStop only sleeps: a gateway that has not heard of it yet is still served.
            assert old.container["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"
            late = Stream(to_old, tokens=2)
            await late.run()
            assert late.token_ids
            # With these there are more than the engine's slots: some have not begun when the server has to end.
            leaving += [Stream(to_old, text=text) for text in ENDLESS[6:]]
            answers = [asyncio.create_task(stream.run()) for stream in leaving]
            await asyncio.gather(*(stream.sent.wait() for stream in leaving), leaving[6].begun.wait())
            assert await takes_requests(to_old)  # and has read, on the same connection, what was sent before
            assert not leaving[-1].begun.is_set()
            os.kill(old.child.pid, signal.SIGTERM)
            started = time.monotonic()
            await asyncio.to_thread(eventually, lambda: not old.is_ready(), "the readiness probe fails")
            await soon(lambda: is_closed(to_old), "gRPC is closed")  # a moment after HTTP
            await refused_at_once(Stream(to_old))
            assert [stream.ended for stream in leaving] == [None] * len(ENDLESS)
            taken_over = Stream(to_new, text=ENDLESS[0])
            await asyncio.gather(taken_over.run(), *answers)
        assert await asyncio.to_thread(old.child.wait, old.grace_period_s)
        assert time.monotonic() - started < old.grace_period_s
        assert old.child.exit_status() == "exited with code 0"
    assert [(stream.ended, len(stream.token_ids)) for stream in leaving] == [("length", TOKENS)] * len(ENDLESS)
    assert leaving[0].token_ids == taken_over.token_ids


async def test_a_server_whose_model_process_dies_ends_at_once_for_its_kubelet(
    volume: Path, tmp_path: Path, free_ports: FreePorts
):
    """Triton itself would go on without it, and be live and ready."""
    with running(pair_on(volume, draft="draft"), tmp_path / "pod", free_ports(3)) as server:
        async with grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
            await Stream(client).step()
            children = psutil.Process(server.child.pid).children(recursive=True)
            [model] = [child for child in children if child.name().startswith("triton_python")]
            model.kill()
            assert await asyncio.to_thread(server.child.wait, PATIENCE_S)


async def takes_requests(client: grpc_client.InferenceServerClient) -> bool:
    try:
        return bool(await client.is_server_ready())
    except InferenceServerException:
        return False


async def is_closed(client: grpc_client.InferenceServerClient) -> bool:
    return not await takes_requests(client)


async def refused_at_once(stream: Stream) -> None:
    """No token of it comes: before the first one a gateway may take it elsewhere."""
    try:
        await stream.run()
    except Exception as exc:  # gRPC's errors share no base that says no more than this
        stream.ended = f"error: {exc}"
    assert stream.ended is not None
    assert stream.ended.startswith("error")
    assert stream.token_ids == []
