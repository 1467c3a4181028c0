"""A cluster that tests talk to: its gateways and objects, and the traffic that they get."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from slipstream_tools.up.processes import Child

from tests.support.clients import Clients
from tests.support.command import SCRIPT
from tests.support.kube import KubeApiServer
from tests.support.manifests import JSON
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer
from tests.support.streams import text_of, whole_events_of

REQUEST_LIMIT_S = 60.0
HOLD_BACK_SHARE = 0.4
FIRST_SHARE = 0.5
MAX_TOKENS = 48
CLIENTS = 2
_PLURALS = {"modelpair": "modelpairs", "speculationpolicy": "speculationpolicies"}


class Gateway:
    """A `slipstream gateway` that takes its manifest from the cluster."""

    def __init__(
        self, name: str, kube: KubeApiServer, namespace: str, redis_url: str, folder: Path, port: int, *options: str
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.child = Child(
            name=name,
            command=[
                *(SCRIPT, "gateway", "--source", "kubernetes", "--port", str(port)),
                *("--kubeconfig", str(kube.kubeconfig(namespace=namespace)), "--namespace", namespace),
                *("--report-namespace", namespace, "--snapshot", str(folder / f"{name}.json"), *options),
            ],
            log_path=folder / f"{name}.log",
            env={**os.environ, "SLIPSTREAM_REDIS_URL": redis_url},
        )


class Cluster:
    """One namespace with everything in it. `gateways` are asked in turns."""

    def __init__(self, kube: KubeApiServer, namespace: str, gateways: list[Gateway]) -> None:
        self.kube, self.namespace, self.gateways = kube, namespace, gateways
        self._turn = itertools.cycle(gateways)
        self._http = httpx.Client(timeout=REQUEST_LIMIT_S)

    def close(self) -> None:
        self._http.close()

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.kube.kubectl(*arguments, input=input, namespace=self.namespace)

    def get(self, kind: str, name: str = "support") -> JSON:
        """A pair or a policy as it is now; not by kubectl, since polls would start hundreds of processes."""
        path = f"/apis/slipstream.dev/v1alpha1/namespaces/{self.namespace}/{_PLURALS[kind]}/{name}"
        return self.kube.client().get(path)

    def conditions(self, kind: str) -> dict[str, str]:
        status = self.get(kind).get("status", {})
        return {each["type"]: each["status"] for each in status.get("conditions", ())}

    def class_status(self, name: str) -> JSON:
        classes = self.get("speculationpolicy").get("status", {}).get("classes", ())
        return next((each for each in classes if each["name"] == name), {})

    def ask(self, text: str, *, is_drawn: bool = True, mode: str = "auto", **options: Any) -> httpx.Response:
        """One request to the next gateway; it must succeed. `is_drawn`: it may be held back. `mode`: the client's wish,
        where the policy allows one."""
        body = self._body(text, **options)
        url = f"{next(self._turn).url}/v1/chat/completions"
        headers = {"x-slipstream-mode": mode, **({} if is_drawn else {"x-slipstream-learn": "off"})}
        response = self._http.post(url, json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response

    def explain(self, text: str) -> list[JSON]:
        """Every gateway's decision, without chance and without running anything."""
        body = self._body(text)
        answers = [self._http.post(f"{gateway.url}/v1/route", json=body) for gateway in self.gateways]
        return [answer.json() for answer in answers]

    def _body(self, text: str, **options: Any) -> JSON:
        """Greedy, and of the same expected length each time: that is half of a request's class."""
        message = {"role": "user", "content": text}
        return {"model": "support", "messages": [message], "temperature": 0, "max_tokens": MAX_TOKENS, **options}


def start_operator(kube: KubeApiServer, namespace: str, folder: Path, redis_url: str) -> Child:
    """A `slipstream operator` of one namespace."""
    liveness, metrics = lasting_ports(2)
    return Child(
        name="the operator",
        command=[
            *(SCRIPT, "operator", "--namespace", namespace, "--report-namespace", namespace),
            *("--kubeconfig", str(kube.kubeconfig(namespace=namespace))),
            *("--host", "127.0.0.1", "--liveness-port", str(liveness), "--metrics-port", str(metrics)),
        ],
        log_path=folder / "operator.log",
        env={**os.environ, "SLIPSTREAM_REDIS_URL": redis_url},
    )


@contextlib.contextmanager
def running_cluster(kube: KubeApiServer, namespace: str, folder: Path, *, gateways: int) -> Iterator[Cluster]:
    """A Redis, an operator and gateways, in a namespace without objects. All must still run at the end."""
    redis_port, *of_gateways = lasting_ports(1 + gateways)
    redis = RedisServer(folder, redis_port)
    operator = start_operator(kube, namespace, folder, redis.url)
    processes = [
        Gateway(f"gateway-{index}", kube, namespace, redis.url, folder, port) for index, port in enumerate(of_gateways)
    ]
    cluster = Cluster(kube, namespace, processes)
    children = (operator, *(gateway.child for gateway in processes))
    try:
        yield cluster
        for child in children:
            assert child.exit_status() is None, child.log_tail()
    finally:
        cluster.close()
        for child in children:
            child.terminate()
        for child in children:
            child.stop(timeout_s=15)
        redis.stop()


class Traffic(Clients):
    """Requests of all the texts that `texts` make, round and round. Both arms fill up, since the policy holds back many
    of them."""

    def __init__(self, cluster: Cluster, *texts: Callable[[], str]) -> None:
        super().__init__(CLIENTS)
        self._cluster = cluster
        self._texts = texts

    def _run(self, number: int) -> None:
        for text in itertools.cycle(self._texts):
            if self._over.is_set():
                return
            self._cluster.ask(text())


class Stream(NamedTuple):
    """One streamed answer. Times by `time.monotonic`; `resumed` has the cause of each change of its server."""

    began_s: float
    ended_s: float
    arm: str
    text: str
    resumed: tuple[str, ...]


class Streams(Clients):
    """Streams of one text by several clients, one after the other. `mode` as for `Cluster.ask`: a longer answer's class
    may not be promoted yet."""

    def __init__(self, cluster: Cluster, text: str, *, clients: int, max_tokens: int = 160, mode: str = "auto") -> None:
        super().__init__(clients)
        self._mode = mode
        self._cluster = cluster
        self._max_tokens = max_tokens
        self._text = text
        self.answers: list[Stream] = []

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            began_s = time.monotonic()
            options = {"max_tokens": self._max_tokens, "stream": True, "stream_options": {"include_usage": True}}
            response = self._cluster.ask(self._text, is_drawn=False, mode=self._mode, **options)
            events, arm = whole_events_of(response.text), response.headers["x-slipstream-arm"]
            # The causes of the changes of its server.
            resumed = tuple(events[-1]["usage"]["slipstream"].get("resumed", ()))
            self.answers.append(Stream(began_s, time.monotonic(), arm, text_of(events), resumed))
