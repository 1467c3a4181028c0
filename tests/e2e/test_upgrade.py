"""An upgrade from the version before and the way back, part by part and under traffic: no request fails, and no class
of a policy loses its state.

API server, operators, gateways and Redis are real. The version before runs from its own tree, in this environment.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from helm_python import Chart

from tests.gateway.openai_server import OpenAiServer
from tests.operator.operator_process import Cluster, OperatorProcess, grant
from tests.support.clients import Clients
from tests.support.earlier_release import RELEASE, ROOT, environment_of, extract
from tests.support.gateway_process import Process
from tests.support.kube import KubeApiServer, install_definitions
from tests.support.manifests import JSON
from tests.support.metrics import total
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer
from tests.support.streams import whole_text_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]  # ten processes, and the story of three classes

CLIENTS = 4
TOKENS = 8
MIXED_REQUESTS = 200
LEAVE_S = 5
SUMMARY = "Summarize the following support call for the CRM: reason, agent actions, outcome, next step. " * 4
CODE = "Write a Python function that parses a CSV file with quoted fields and returns a list of dictionaries. " * 3
TRANSLATION = "Translate the following paragraph into German: the parcel was delivered to the neighbour. " * 3
PLAIN_S = 0.12
SPECULATIVE_S = {SUMMARY: 0.03, CODE: 0.5, TRANSLATION: 0.03}
POLICY: JSON = {
    "decision": "rules",
    "margin": 0.25,  # noise of a busy machine's times is no loss
    "minOutputTokens": 0,
    "maxRareTokenShare": 1,
    "minConfidence": 0,
    "holdBackShare": 0.4,
    "parityShare": 0,
    "analysis": {"minSamples": 20, "falseAlarmRequests": 100, "confidence": 0.6},
    "rollout": {"steps": [{"share": share, "soakSeconds": 1} for share in (0.5, 0.6, 1)]},
    "rollback": {"coolDownSeconds": 3600, "maxRetries": 0, "staleAfterSeconds": 3600},
}


class TimedServer(OpenAiServer):
    """Its answers take as long as `times_s` has it for their request's text."""

    def __init__(self, times_s: dict[str, float]) -> None:
        self._times_s = times_s
        super().__init__(scripted=False)

    async def _play(self, request: Any, script: dict[str, str], *streams: Any, is_response: bool) -> bool:
        script = {"slow": str(self._times_s[request["messages"][-1]["content"]]), "tokens": str(TOKENS)}
        return await super()._play(request, script, *streams, is_response=is_response)


class Balancer:
    """The addresses that clients use, as a Service has them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, int] = {}
        self._serving: list[str] = []
        self._luck = random.Random(1)

    def add(self, url: str) -> None:
        with self._lock:
            self._serving.append(url)

    def remove(self, url: str) -> None:
        with self._lock:
            self._serving.remove(url)

    def is_unused(self, url: str) -> bool:
        return not self._used.get(url)

    @contextmanager
    def address(self) -> Iterator[str]:
        """The address of a request, which is used until the end of the context."""
        with self._lock:
            url = self._luck.choice(self._serving)
            self._used[url] = self._used.get(url, 0) + 1
        try:
            yield url
        finally:
            with self._lock:
                self._used[url] -= 1


class Traffic(Clients):
    """Requests of `texts`, every second one a stream. `answered` has the addresses, `failures` what went wrong, and
    `classes` the class of each text."""

    def __init__(self, balancer: Balancer, texts: list[str]) -> None:
        super().__init__(CLIENTS)
        self.texts = texts
        self.answered: list[str] = []
        self.failures: list[str] = []
        self.classes: defaultdict[str, set[str]] = defaultdict(set)
        self._balancer = balancer

    def _run(self, number: int) -> None:
        for turn in itertools.count(number):
            if self._over.is_set():
                return
            text = self.texts[turn % len(self.texts)]
            with self._balancer.address() as url:
                try:
                    self._ask(url, text, is_stream=bool(turn // len(self.texts) % 2))
                except (httpx.HTTPError, AssertionError) as error:
                    self.failures.append(f"{url}: {error!r}")
            self.answered.append(url)

    def _ask(self, url: str, text: str, *, is_stream: bool) -> None:
        body = {"model": "acme", "messages": [{"role": "user", "content": text}], "temperature": 0, "stream": is_stream}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        self.classes[text].add(answer.headers["x-slipstream-class"])
        content = whole_text_of(answer.text) if is_stream else answer.json()["choices"][0]["message"]["content"]
        assert len(content.split()) == TOKENS, content

    def wait_for(self, count: int, urls: set[str]) -> None:
        """Until so many further requests were answered, by each of `urls` at least one."""
        first = len(self.answered)
        eventually(lambda: len(self.answered) >= first + count and urls <= set(self.answered[first:]))


class World:
    """The parts of an installation, each of a version: its tree's folder."""

    def __init__(self, kube: KubeApiServer, cluster: Cluster, redis: RedisServer, folder: Path) -> None:
        self.cluster, self.balancer = cluster, Balancer()
        self._kube, self._redis, self._folder = kube, redis, folder
        self._stack = ExitStack()
        self.gateways: list[Process] = []
        self._operator: OperatorProcess | None = None

    def close(self) -> None:
        self._stack.close()

    def define(self, tree: Path) -> None:
        """The definitions of the custom resources become those of `tree`."""
        charts = Chart.load(tree / "charts" / "slipstream-crds").render(name="test", namespace="default").values()
        items = [item for text in charts for item in yaml.safe_load_all(text) if item]
        definitions = [item for item in items if item["kind"] == "CustomResourceDefinition"]
        for item in definitions:
            path = self._kube.client().path_of(item)
            if self._kube.client().exists(path):
                version = self._kube.client().get(path)["metadata"]["resourceVersion"]
                self._kube.client().replace(
                    path, {**item, "metadata": {**item["metadata"], "resourceVersion": version}}
                )
        install_definitions(self._kube, definitions)

    def operate(self, tree: Path) -> None:
        """An operator of `tree` starts, then the present one ends, as a Deployment replaces its pod."""
        options = ("--redis", self._redis.url)
        operator = OperatorProcess(
            self._kube, self.cluster.namespace, self._folder, *options, environment=environment_of(tree)
        )
        self._stack.enter_context(operator)
        operator.wait_ready()
        if self._operator is not None:
            self._operator.terminate()
        self._operator = operator

    def serve(self, tree: Path) -> Process:
        """A further gateway of `tree` gets requests."""
        [port] = lasting_ports(1)
        kubeconfig = str(self._kube.kubeconfig(namespace=self.cluster.namespace))
        options = [
            *("--kubeconfig", kubeconfig, "--namespace", self.cluster.namespace),
            *("--report-namespace", self.cluster.namespace, "--snapshot", str(self._folder / f"{port}.json")),
            *("--redis", self._redis.url, "--allow-anonymous", "--conformance", "off"),
            *(("--leave", str(LEAVE_S)) if tree == ROOT else ()),
        ]
        log = self._folder / f"gateway-{port}.log"
        gateway = Process(None, port, *options, environment=environment_of(tree), log=log)
        self._stack.callback(gateway.stop)
        gateway.wait_live("/health/ready")
        self.gateways.append(gateway)
        self.balancer.add(gateway.url)
        return gateway

    def replace(self, old: Process, tree: Path, *, leaves: bool) -> None:
        """A gateway of `tree` in place of `old`, as a Deployment does it. One that `leaves` is ended while it has
        requests; of the version before, a hook of its pod waits until it has none."""
        self.serve(tree)
        self.gateways.remove(old)
        self.balancer.remove(old.url)
        if not leaves:
            eventually(lambda: self.balancer.is_unused(old.url), "the last request")
        old.stop()

    def classes(self) -> dict[str, JSON]:
        """The state of each class by its name, as the policy's status has it."""
        status = self.cluster.client.get(self.cluster.path("speculationpolicies", "acme")).get("status") or {}
        return {entry["name"]: entry for entry in status.get("classes", ())}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The tree of the version before."""
    tree = extract(tmp_path / "before")
    if tree is None:
        pytest.skip(f"this checkout has no commit of {RELEASE}: it is a shallow one")
    return tree


@pytest.fixture
def world(before: Path, tmp_path: Path, redis: RedisServer) -> Iterator[World]:
    """An installation of the version before with a pair and its policy."""
    with KubeApiServer(tmp_path / "kube") as kube, ExitStack() as stack:
        plain = stack.enter_context(TimedServer(dict.fromkeys(SPECULATIVE_S, PLAIN_S)))
        speculative = stack.enter_context(TimedServer(SPECULATIVE_S))
        cluster = grant(kube, kube.namespace("serving"))
        world = World(kube, cluster, redis, tmp_path)
        stack.callback(world.close)
        world.define(before)
        servers = {"plain": plain, "speculative": speculative}
        arms = {name: {"protocol": "openai", "endpoints": [one.url], "model": "acme"} for name, one in servers.items()}
        cluster.declare("ModelPair", "acme", {"model": "acme", "engine": {"kind": "external", "arms": arms}})
        cluster.policy("acme", **POLICY)
        world.operate(before)
        for _ in range(2):
            world.serve(before)
        yield world


def reach(world: World, wanted: Callable[[dict[str, JSON]], bool], what: str) -> None:
    eventually(lambda: wanted(world.classes()), what, within_s=240, seen=world.classes)


def state_of(entry: JSON) -> tuple[str, int, str]:
    """The part of a class's state that an upgrade must keep: since when it is in which phase and step."""
    return entry["phase"], entry["step"], entry["since"]


def test_upgrade_and_downgrade_lose_no_request_and_no_state(world: World, before: Path) -> None:
    with Traffic(world.balancer, [SUMMARY, CODE]) as traffic:
        eventually(lambda: len(traffic.classes) == 2, "an answer for each text")
        (good,), (bad,) = traffic.classes[SUMMARY], traffic.classes[CODE]
        reach(
            world,
            lambda found: (
                (found.get(good, {}).get("phase"), found.get(bad, {}).get("phase")) == ("Promoted", "RolledBack")
            ),
            "a promoted class and one that is rolled back",
        )
        traffic.texts = [SUMMARY, CODE, TRANSLATION]
        eventually(lambda: traffic.classes[TRANSLATION], "an answer for the third text")
        (slow,) = traffic.classes[TRANSLATION]
        reach(world, lambda found: found.get(slow, {}).get("step") == 1, "a class that is being promoted")
        traffic.texts = [SUMMARY, CODE]
        kept = {name: state_of(entry) for name, entry in world.classes().items()}
        assert kept[slow][0] == "Progressing"
        upgrade(world, traffic, kept)
        # The rollout goes on from its step: with the first one's soak and evidence it would begin anew.
        traffic.texts = [SUMMARY, CODE, TRANSLATION]
        reach(world, lambda found: found[slow]["phase"] == "Promoted", "the third class is promoted")
        kept = {name: state_of(entry) for name, entry in world.classes().items()}
        downgrade(world, traffic, kept, before)
    assert traffic.failures == []
    assert all(len(names) == 1 for names in traffic.classes.values())


def upgrade(world: World, traffic: Traffic, kept: dict[str, Any]) -> None:
    steps = (lambda: world.define(ROOT), lambda: world.operate(ROOT), *[lambda: swap(world, ROOT)] * 2)
    go(world, traffic, kept, steps)


def downgrade(world: World, traffic: Traffic, kept: dict[str, Any], before: Path) -> None:
    steps = (*[lambda: swap(world, before)] * 2, lambda: world.operate(before), lambda: world.define(before))
    go(world, traffic, kept, steps)


def swap(world: World, tree: Path) -> None:
    world.replace(world.gateways[0], tree, leaves=tree != ROOT)


def go(world: World, traffic: Traffic, kept: dict[str, Any], steps: tuple[Callable[[], None], ...]) -> None:
    """After each step both gateways answer for a while, and every class is as it was."""
    for step in steps:
        step()
        traffic.wait_for(MIXED_REQUESTS, {gateway.url for gateway in world.gateways})
        assert {name: state_of(entry) for name, entry in world.classes().items()} == kept
        assert traffic.failures == []
        assert [skipped_outcomes(gateway) for gateway in world.gateways] == [0, 0]


def skipped_outcomes(gateway: Process) -> float:
    """Batches of other gateways' outcomes that this one could not read."""
    return total(httpx.get(f"{gateway.url}/metrics", timeout=PATIENCE_S).text, "slipstream_store_skipped_total")
