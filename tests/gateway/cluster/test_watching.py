"""Lists and watches against a server that plays a script: what a real one does only when something is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.kube.client import Json, KubeClient
from slipstream_core.kube.errors import (
    KubeConflict,
    KubeError,
    KubeExpired,
    KubeNotFound,
    KubeRejected,
    KubeUnavailable,
    KubeUnreachable,
)
from slipstream_core.kube.reflector import Change, Pace, Reflector
from slipstream_gateway.sources.cluster.reporting import Reporter

from tests.support.polling import soon

pytestmark = pytest.mark.integration

PACE = Pace(watch_s=60.0, grace_s=0.2, resync_s=1000.0, first_pause_s=0.01, longest_pause_s=0.05, steady_s=0.1)
PATH = "/apis/x/v1/things"


class ApiServer:
    """Answers each request with the next step of a script: `(status, value)`, or bytes to send as a watch's chunks,
    between which a number is a pause in seconds; `...` keeps silent, None breaks the connection off, and the end of
    the list ends the answer."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.steps: list[Any] = []
        self._folder = folder
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.server.close()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.write_token("first")

    @property
    def kubeconfig(self) -> Path:
        return self._folder / "kubeconfig.yaml"

    def write_token(self, token: str) -> None:
        clusters = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}]
        users = [{"name": "u", "user": {"token": token}}]
        contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        config = {"clusters": clusters, "users": users, "contexts": contexts, "current-context": "x"}
        self.kubeconfig.write_text(json.dumps(config))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head.split(" ")[1])
                self.tokens += [line.split()[-1] for line in head.lower().splitlines() if "authorization:" in line]
                step = self.steps.pop(0) if self.steps else [...]
                if not await self._answer(step, writer):
                    break
        writer.close()

    async def _answer(self, step: Any, writer: asyncio.StreamWriter) -> bool:
        if isinstance(step, tuple):
            status, value = step
            body = json.dumps(value).encode()
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for chunk in step:
            if chunk is ...:
                await self._stopping.wait()
            if isinstance(chunk, float):
                await asyncio.sleep(chunk)
                continue
            if chunk is None or self._stopping.is_set():
                return False
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return True


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.changes: list[tuple[str, bool]] = []

    def replaced(self, items: Sequence[Json]) -> None:
        self.lists.append([item["metadata"]["name"] for item in items])

    def changed(self, changes: Sequence[Change]) -> None:
        self.changes += [(change.item["metadata"]["name"], change.deleted) for change in changes]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    served = ApiServer(tmp_path)
    await served.start()
    yield served
    served.stop()


@pytest.fixture
def follow(server: ApiServer) -> Callable[..., contextlib.AbstractAsyncContextManager[tuple[Reflector, Recorder]]]:
    @contextlib.asynccontextmanager
    async def run(
        *steps: Any, paths: tuple[str, ...] = (PATH,), pace: Pace = PACE, **options: Any
    ) -> AsyncIterator[tuple[Reflector, Recorder]]:
        server.steps = list(steps)
        client, sink = KubeClient(server.kubeconfig, **options, name="test"), Recorder()
        reflector = Reflector(client, paths, sink, pace=pace)
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector, sink
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.aclose()

    return run


def _page(*names: str, version: str = "7", token: str = "") -> tuple[int, Json]:
    items = [{"metadata": {"name": name}} for name in names]
    return 200, {"items": items, "metadata": {"resourceVersion": version, "continue": token}}


def _event(kind: str, name: str = "", version: str = "8", **more: Any) -> bytes:
    item = {"metadata": {"name": name, "resourceVersion": version}, **more}
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


async def test_a_list_is_taken_page_by_page_and_watched_from_its_version(server: ApiServer, follow: Any) -> None:
    pages = _page("a", "b", token="t/1"), _page("c", version="9")
    async with follow(*pages, [_event("ADDED", "d"), ...]) as (reflector, sink):
        await soon(lambda: sink.changes, "the watch tells of a change")
        assert sink.lists == [["a", "b", "c"]]
        assert sink.changes == [("d", False)]
        assert reflector.synced.is_set()
        assert "continue=t%2F1" in server.requests[1] or "continue=t/1" in server.requests[1]
        assert "resourceVersion=9" in server.requests[2]


async def test_events_may_come_in_pieces_and_many_at_once_and_be_large(follow: Any) -> None:
    large = _event("MODIFIED", "large", text="x" * 6_000_000)
    data = _event("ADDED", "a") + b"\n" + _event("DELETED", "b") + large + _event("ADDED", "c")
    chunks = [data[start : start + 100_003] for start in range(0, len(data), 100_003)]
    async with follow(_page(), [*chunks, ...]) as (_, sink):
        await soon(lambda: len(sink.changes) == 4, "all four are told")
        assert sink.changes == [("a", False), ("b", True), ("large", False), ("c", False)]


async def test_a_bookmark_moves_the_place_to_go_on_from(server: ApiServer, follow: Any) -> None:
    async with follow(_page(), [_event("BOOKMARK", version="41"), None], [...]) as (_, sink):
        await soon(lambda: len(server.requests) == 3, "the watch goes on")
        assert "resourceVersion=41" in server.requests[2]
        assert len(sink.lists) == 1, "a broken connection needs no new list"


@pytest.mark.parametrize(
    "answer",
    [
        (410, {"message": "too old"}),
        [b'{"type":"ERROR","object":{"code":410,"message":"too old"}}\n'],
        (500, {"message": "internal"}),
        [b'{"type":"ERROR","object":{"code":500,"message":"internal"}}\n'],
        [b"this is no JSON\n"],
        [b'{"kind":"Status"}\n'],
        [b'{"type":"ADDED","object":{}}\n'],
    ],
)
async def test_a_watch_that_cannot_go_on_is_followed_by_a_new_list(answer: Any, follow: Any) -> None:
    after = [_event("ADDED", "later"), ...]
    async with follow(_page("a"), answer, _page("b", version="20"), after) as (reflector, sink):
        await soon(lambda: sink.changes == [("later", False)], "the watch after it")
        assert sink.lists == [["a"], ["b"]]
        assert reflector.connected
        await soon(lambda: reflector.problem == "", "all is well again")


async def test_a_page_that_has_expired_starts_the_list_again(follow: Any) -> None:
    async with follow(_page("a", token="old"), (410, {"message": "expired"}), _page("a", "b")) as (_, sink):
        await soon(lambda: sink.lists, "the list")
        assert sink.lists == [["a", "b"]]


async def test_a_watch_that_neither_speaks_nor_ends_in_time_is_given_up(server: ApiServer, follow: Any) -> None:
    pace = Pace(watch_s=1.0, grace_s=0.1, first_pause_s=0.01, longest_pause_s=0.01)
    async with follow(_page(), [...], [_event("ADDED", "a"), ...], pace=pace) as (_, sink):
        await soon(lambda: sink.changes, "the next watch tells")
        assert "timeoutSeconds=1" in server.requests[1] or "timeoutSeconds=2" in server.requests[1]


async def test_a_list_is_taken_anew_now_and_then_though_nothing_is_wrong(server: ApiServer, follow: Any) -> None:
    pace = Pace(resync_s=0.4, grace_s=1.0)
    async with follow(_page("a"), [0.8], _page("b"), [...], pace=pace) as (_, sink):
        await soon(lambda: len(sink.lists) == 2, "the second list")


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_without_pause(
    server: ApiServer, follow: Any
) -> None:
    clock, pace = asyncio.get_running_loop().time, Pace(first_pause_s=0.2, longest_pause_s=0.2)
    started_s = clock()
    async with follow(_page(), *[[] for _ in range(50)], pace=pace):
        await asyncio.sleep(0.5)
        # A list and a watch, then one request after each pause, none of which is shorter than half of 0.2 s.
        assert len(server.requests) <= 2 + (clock() - started_s) / 0.1


async def test_an_older_version_of_a_kind_is_used_where_the_server_lacks_the_newer(
    server: ApiServer, follow: Any
) -> None:
    paths = ("/apis/x/v1/things", "/apis/x/v1beta1/things")
    missing = (404, {"message": "the server could not find the requested resource"})
    async with follow(missing, _page("a"), [_event("ADDED", "b"), ...], paths=paths) as (_, sink):
        await soon(lambda: sink.changes, "the watch tells")
        assert [request.split("?")[0] for request in server.requests] == [paths[0], paths[1], paths[1]]


async def test_credentials_that_are_no_longer_accepted_are_loaded_again(server: ApiServer, follow: Any) -> None:
    refused = (401, {"message": "Unauthorized"})
    async with follow(_page("a"), [0.1], refused, refused, _page("b"), reload_s=0.0) as (_, sink):
        await soon(lambda: sink.lists, "the first list")
        server.write_token("second")
        await soon(lambda: len(sink.lists) == 2, "the second list")
        assert server.tokens[0] == "first"
        assert server.tokens[-1] == "second"


async def test_no_answer_is_no_refusal(tmp_path: Path) -> None:
    client = KubeClient(tmp_path / "missing.yaml", name="test")
    with pytest.raises(KubeUnreachable, match="missing"):
        await client.get(PATH)


async def test_an_answer_that_takes_too_long_is_given_up(server: ApiServer) -> None:
    client = KubeClient(server.kubeconfig, call_timeout_s=0.3, name="test")
    server.steps = [[...]]
    with pytest.raises(KubeUnreachable, match="did not answer in time"):
        await client.get(PATH)
    await client.aclose()


async def test_a_refusal_says_why_in_the_servers_words(server: ApiServer) -> None:
    client = KubeClient(server.kubeconfig, name="test")
    server.steps = [(403, {"message": "things is forbidden"})]
    with pytest.raises(KubeRejected, match="things is forbidden") as refusal:
        await client.get(PATH)
    assert refusal.value.status == 403
    await client.aclose()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, KubeUnavailable),
        (403, KubeRejected),
        (404, KubeNotFound),
        (409, KubeConflict),
        (410, KubeExpired),
        (422, KubeRejected),
        (429, KubeUnavailable),
        (503, KubeUnavailable),
    ],
)
async def test_each_status_has_one_kind_of_error_that_names_the_call(
    server: ApiServer, status: int, kind: type[KubeError]
) -> None:
    async with KubeClient(server.kubeconfig, name="test") as client:
        server.steps = [(status, {"message": "no", "details": {"name": "a"}})]
        with pytest.raises(KubeError) as raised:
            await client.merge(PATH, {})
    assert type(raised.value) is kind
    assert (raised.value.status, raised.value.object_name) == (status, "a")
    assert str(raised.value) == f"no (PATCH {PATH}: {status})"


async def test_a_missing_object_is_found_as_none_and_deleted_without_an_error(server: ApiServer) -> None:
    written: list[tuple[str, str]] = []
    async with KubeClient(
        server.kubeconfig, name="test", on_write=lambda method, path: written.append((method, path))
    ) as client:
        server.steps = [(404, {}), (404, {}), (201, {}), (200, {})]
        assert await client.find(PATH) is None
        await client.delete(PATH)
        await client.create(PATH, {})
        await client.delete(PATH, uid="1")
    assert written == [("POST", PATH), ("DELETE", PATH)]


async def test_an_answer_that_is_no_json_is_one_clear_line(server: ApiServer) -> None:
    """As of a proxy in the way."""
    client = KubeClient(server.kubeconfig, name="test")
    server.steps = [[b"<html>"]]
    with pytest.raises(KubeError, match="not a JSON object"):
        await client.get(PATH)
    await client.aclose()


async def test_a_cluster_that_renews_its_certificates_is_reached_with_the_new_ones(
    lenient: Any, tmp_path: Path
) -> None:
    kubeconfig, authority = tmp_path / "kubeconfig.yaml", tmp_path / "ca.crt"
    subject = ("-subj", "/CN=another", "-keyout", str(tmp_path / "key"), "-out", str(authority))
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    text = lenient.kubeconfig().read_text()
    kubeconfig.write_text(text.replace(str(lenient.ca_file), str(authority)))
    client = KubeClient(kubeconfig, reload_s=0.0, name="test")
    with pytest.raises(KubeUnreachable, match=r"(?i:certificate)"):
        await client.get("/version")
    authority.write_bytes(lenient.ca_file.read_bytes())
    assert "gitVersion" in await client.get("/version")
    await client.aclose()


async def test_a_list_that_repeats_a_page_for_ever_is_given_up(server: ApiServer, follow: Any) -> None:
    async with follow(*[_page("a", token="again") for _ in range(50)]) as (reflector, sink):
        await soon(lambda: "repeats the same page" in reflector.problem, "it is noticed")
        assert not sink.lists


async def test_a_server_that_fails_after_each_event_is_told_of_once_and_asked_ever_less_often(
    server: ApiServer, follow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flapping = [_page("a"), [_event("MODIFIED", "a"), 0.01, b"no JSON\n"]] * 100
    pace = Pace(first_pause_s=0.05, longest_pause_s=10.0, steady_s=1.0)
    async with follow(*flapping, pace=pace) as (reflector, sink):
        await soon(lambda: len(sink.changes) == 3, "three rounds")
        assert caplog.text.count("not JSON") == 1
        assert "the watch has recovered" not in caplog.text
        assert reflector.problem
        await asyncio.sleep(0.3)
        assert len(sink.changes) <= 5, "each pause is twice the last"


async def test_a_watch_that_lasts_makes_good_what_was_wrong(follow: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with follow((500, {"message": "x"}), _page("a"), [...]) as (reflector, _):
        await soon(lambda: "the watch has recovered" in caplog.text, "a watch without any event")
        assert reflector.problem == ""


async def test_a_page_of_a_list_may_take_long_but_must_not_stop_on_its_way(server: ApiServer) -> None:
    body = json.dumps(_page("a", "b")[1]).encode()
    pieces = [piece for start in range(0, len(body), 20) for piece in (body[start : start + 20], 0.1)]
    client = KubeClient(server.kubeconfig, call_timeout_s=0.2, list_silence_s=4.0, name="test")
    server.steps = [pieces, [body[:20], ...]]
    assert len((await client.list(PATH)).items) == 2
    with pytest.raises(KubeUnreachable):
        await client.list(PATH)
    await client.aclose()


async def test_credentials_that_are_refused_to_one_call_do_not_end_the_others(server: ApiServer) -> None:
    """Every second answer is a refusal, and each makes the credentials be loaded again."""
    server.steps = [(401, {}) if index % 2 else (200, {}) for index in range(120)]
    client = KubeClient(server.kubeconfig, reload_s=0.0, name="test")

    async def call() -> object:
        try:
            return await client.get(PATH)
        except KubeUnavailable as exc:
            return exc.status

    answers = [await asyncio.gather(*(call() for _ in range(20))) for _ in range(6)]
    assert all(answer in ({}, 401) for batch in answers for answer in batch)
    assert {} in answers[-1]
    await client.aclose()


_CLUSTER = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
_SHAPES: list[Any] = [
    [1],
    5,
    "x",
    {"clusters": 5, "contexts": 3, "current-context": "x"},
    {"clusters": [None], "contexts": [{}], "current-context": "x"},
    {"clusters": [_CLUSTER], "users": [{"name": "u", "user": 5}], "current-context": ["x"]},
    {"clusters": [{"name": "c", "cluster": {"server": 5}}]},
    {"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9", "proxy-url": 5}}]},
]


@pytest.mark.parametrize("shape", _SHAPES, ids=range(len(_SHAPES)))
async def test_a_kubeconfig_of_another_shape_is_one_clear_error(shape: Any, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig.yaml"
    if isinstance(shape, dict):
        users, contexts = [{"name": "u", "user": {}}], [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        shape = {"users": users, "contexts": contexts, "current-context": "x"} | shape
    path.write_text(json.dumps(shape))
    client = KubeClient(path, name="test")
    with pytest.raises(KubeUnreachable, match=r"the kubeconfig .*kubeconfig\.yaml cannot be used: .") as raised:
        await client.get(PATH)
    assert "\n" not in str(raised.value)
    await client.aclose()


async def test_a_watch_that_breaks_off_twice_is_followed_by_a_new_list(server: ApiServer, follow: Any) -> None:
    async with follow(_page("a"), [None], [None], _page("b"), [...]) as (_, sink):
        await soon(lambda: len(server.requests) == 5, "the watch after the new list")
        assert ["watch=1" in request for request in server.requests] == [False, True, True, False, True]
        assert sink.lists == [["a"], ["b"]]


async def test_a_refused_report_comes_from_a_server_that_is_reachable(server: ApiServer) -> None:
    client = KubeClient(server.kubeconfig, name="test")
    reporter = Reporter(client, namespace="ns", namespaces=(), applied=dict, withheld=dict)
    server.steps = [[None], (403, {"message": "leases are forbidden"})]
    task = asyncio.create_task(reporter.run())
    try:
        await soon(lambda: not reporter.reachable, "the broken connection")
        await soon(lambda: reporter.reachable, "the refusal")
    finally:
        task.cancel()
        await client.aclose()
