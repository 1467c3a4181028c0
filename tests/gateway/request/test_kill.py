"""The kill switch and what runs already: servers are told by the wire protocol, and nothing waits for them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from slipstream_core.errors import UpstreamTimeout, UpstreamUnavailable
from slipstream_core.manifest import RoutingTable, compile_table, parse
from slipstream_core.settings import Deadlines, GatewaySettings
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.app.app import connect
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.kill import AGAIN_AFTER_S
from slipstream_gateway.upstreams.base import Job
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.engines import engine_in_triton
from tests.support.manifests import arm, external, pair_yaml
from tests.support.network import Network
from tests.support.polling import PATIENCE_S, soon

KILLS: dict[str, dict[str, str]] = {
    "pair": {"field": "killSwitch: true"},
    "policy": {"policy": ", killSwitch: true"},
}


class TritonDouble(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A gRPC server that speaks as much of Triton's protocol as an upstream needs, and keeps what it was sent.

    `error` is what control messages are answered with; `silent` ones are not answered; `fail_first` breaks so many.
    """

    def __init__(self) -> None:
        self.controls: list[float] = []
        self.draft_lengths: list[int] = []
        self.error, self.silent, self.fail_first = "", False, 0
        self._server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            [raw] = request.raw_input_contents
            head, _, body = raw.partition(b"\n")
            asked = json.loads(head)
            if asked["path"] == "/slipstream/stop_drafting":
                assert (asked["method"], body) == ("POST", b"")
                self.controls.append(time.monotonic())
                if len(self.controls) <= self.fail_first:
                    await context.abort(grpc.StatusCode.INTERNAL, "broken")
                if self.silent:
                    await asyncio.sleep(PATIENCE_S)
                if self.error:
                    yield service_pb2.ModelStreamInferResponse(error_message=self.error)
                else:
                    yield _answer(b'{"stopped": 0}')
            elif asked["path"] == "/slipstream":
                yield _answer(b'{"plugin": "0", "max_draft_length": 8}')
            else:
                self.draft_lengths.append(json.loads(body)["vllm_xargs"]["slipstream_draft_length"])
                yield service_pb2.ModelStreamInferResponse(error_message="internal: of the test")


def _answer(body: bytes) -> service_pb2.ModelStreamInferResponse:
    response = service_pb2.ModelInferResponse(raw_output_contents=[b'{"status": 200, "headers": {}}\n' + body])
    response.outputs.add(name="response")
    response.parameters["triton_final_response"].bool_param = True
    return service_pb2.ModelStreamInferResponse(infer_response=response)


@pytest.fixture
async def triton_double(async_exit_stack: AsyncExitStack) -> Callable[[], Any]:
    """Starts servers; all are stopped after the test."""

    async def start() -> TritonDouble:
        server = TritonDouble()
        async_exit_stack.push_async_callback(server.stop)
        await server.start()
        return server

    return start


@pytest.fixture
async def make_fleet(async_exit_stack: AsyncExitStack) -> Callable[[], Fleet]:
    """Makes fleets; all are closed after the test."""
    settings = GatewaySettings(manifest=Path(), deadlines=Deadlines(connect_s=10.0))

    def make() -> Fleet:
        fleet = Fleet(lambda key: connect(key, settings), clock=time.monotonic)
        async_exit_stack.push_async_callback(fleet.aclose)
        return fleet

    return make


@pytest.fixture
def fleet(make_fleet: Callable[[], Fleet]) -> Fleet:
    return make_fleet()


def table(
    *servers: TritonDouble, model: str = "acme", field: str = "", policy: str = "", killed: str | None = None
) -> RoutingTable:
    speculative = arm(*(server.endpoint for server in servers), model="embedded", protocol="triton")
    engine = external(arm("http://127.0.0.1:9", model="m"), speculative)
    found = compile_table(parse(pair_yaml(engine, field, model=model, policy=policy)))
    routes = {name: msgspec.structs.replace(route, killed=killed) for name, route in found.routes.items()}
    return msgspec.structs.replace(found, routes=routes)


def counts(*servers: TritonDouble) -> list[int]:
    return [len(server.controls) for server in servers]


@pytest.mark.parametrize("kill", [*KILLS.values(), {"killed": "a broken policy's"}], ids=[*KILLS, "killed"])
async def test_turning_a_kill_on_tells_every_server_now_and_once_more(
    fleet: Fleet, triton_double: Any, kill: dict[str, str]
) -> None:
    servers = [await triton_double() for _ in range(3)]
    fleet.swap(table(*servers))
    fleet.swap(table(*servers, **kill))
    await soon(lambda: counts(*servers) == [2, 2, 2])
    for server in servers:
        first, second = server.controls
        assert second - first > AGAIN_AFTER_S / 2
    fleet.swap(table(*servers, **kill))  # it stays on: a reload of the same tells nobody
    await asyncio.sleep(0)
    assert counts(*servers) == [2, 2, 2]


async def test_nothing_is_told_without_a_kill_nor_by_the_first_table(fleet: Fleet, triton_double: Any) -> None:
    server = await triton_double()
    for changes in ({"killed": "from the start"}, {}, {"policy": ", enabled: false"}):
        fleet.swap(table(server, **changes))
    fleet.swap(table(server, killed="now"))
    await soon(lambda: counts(server) == [2])  # by the last one alone


async def test_a_kill_that_is_taken_back_at_once_does_not_stop_what_comes_after_it(
    make_fleet: Callable[[], Fleet], triton_double: Any
) -> None:
    taken_back, kept = await triton_double(), await triton_double()
    one, other = make_fleet(), make_fleet()
    one.swap(table(taken_back))
    one.swap(table(taken_back, killed="by mistake"))
    one.swap(table(taken_back))
    await soon(lambda: counts(taken_back) == [1])
    other.swap(table(kept))
    other.swap(table(kept, killed="for good"))
    await soon(lambda: counts(kept) == [2])  # by then, the first one's second message would have been sent
    assert counts(taken_back) == [1]


async def test_servers_that_leave_with_the_kill_are_told_and_stay_connected_for_it(
    fleet: Fleet, triton_double: Any
) -> None:
    leaving, staying = await triton_double(), await triton_double()
    fleet.swap(table(leaving))
    fleet.swap(table(staying, killed="now"))
    await soon(lambda: counts(leaving, staying) == [2, 2])


def warnings_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("WARNING")]


async def test_a_server_that_is_broken_or_gone_is_named_and_holds_up_nobody(
    fleet: Fleet, triton_double: Any, said: Callable[[], list[str]]
) -> None:
    well, old, gone = await triton_double(), await triton_double(), await triton_double()
    old.error = "unexpected inference input 'request' for model 'embedded'"
    await gone.stop()
    fleet.swap(table(well, old, gone))
    fleet.swap(table(well, old, gone, killed="now"))
    await soon(lambda: counts(well, old) == [2, 2])
    await soon(lambda: len(warnings_of(said())) == 2)
    lines = warnings_of(said())
    [line] = [line for line in lines if f"{old.endpoint}: what runs there may draft to its end" in line]
    assert "is of another version of Slipstream" in line
    assert any(f"{gone.endpoint}: what runs there may draft to its end" in line for line in lines)


async def test_the_second_message_makes_up_for_a_first_that_failed(
    fleet: Fleet, triton_double: Any, said: Callable[[], list[str]]
) -> None:
    server = await triton_double()
    server.fail_first = 1
    fleet.swap(table(server))
    fleet.swap(table(server, killed="now"))
    await soon(lambda: counts(server) == [2])
    await asyncio.sleep(0.05)  # nothing is said
    assert warnings_of(said()) == []


async def test_closing_the_fleet_gives_up_what_is_not_said(
    fleet: Fleet, triton_double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream_gateway.upstreams.engine_server.CONTROL_TIMEOUT_S", 2 * PATIENCE_S)
    server = await triton_double()
    server.silent = True
    fleet.swap(table(server))
    fleet.swap(table(server, killed="now"))
    await soon(lambda: counts(server) == [1])
    async with asyncio.timeout(PATIENCE_S):
        await fleet.aclose()


@pytest.fixture
async def upstream(triton_double: Any) -> AsyncIterator[tuple[EngineUpstream, TritonDouble]]:
    server = await triton_double()
    upstream = engine_in_triton(server.endpoint.removeprefix("grpc://"))
    yield upstream, server
    await upstream.aclose()


async def test_an_upstream_that_does_not_answer_is_given_up_after_a_deadline(
    upstream: tuple[EngineUpstream, TritonDouble],
) -> None:
    there, server = upstream
    server.silent = True
    with pytest.raises(UpstreamTimeout, match="did not respond in time"):
        await there.stop_drafting()


async def test_a_model_of_another_version_says_so(upstream: tuple[EngineUpstream, TritonDouble]) -> None:
    there, server = upstream
    server.error = "unexpected inference input 'request' for model 'embedded'"
    with pytest.raises(UpstreamUnavailable, match="of another version of Slipstream"):
        await there.stop_drafting()


@pytest.mark.integration
async def test_a_request_that_still_waits_for_its_connection_is_sent_plainly(triton_double: Any) -> None:
    server = await triton_double()
    door = Network(server.port)
    door.hold()
    upstream = engine_in_triton(f"127.0.0.1:{door.port}", connect_timeout_s=PATIENCE_S)
    raw = b'{"model": "acme", "prompt": "x", "stream": true}'
    request = GenerationRequest(endpoint=Endpoint.COMPLETION, model="acme", prompt="x", stream=True, raw=raw)
    job = Job(request=request, model="embedded", draft_length=4, request_id="r")
    try:
        waiting = asyncio.create_task(upstream.open(job))
        await soon(lambda: door.knocks > 0)
        stopping = asyncio.create_task(upstream.stop_drafting())
        await asyncio.sleep(0)  # it has begun, and waits as well
        later = asyncio.create_task(upstream.open(job))
        await asyncio.sleep(0)
        door.release()
        await stopping
        await asyncio.gather(waiting, later, return_exceptions=True)
        assert sorted(server.draft_lengths) == [0, 4]  # what came after the message drafts
        assert counts(server) == [1]
    finally:
        await upstream.aclose()
        door.stop()


async def test_servers_that_left_before_the_kill_are_told_while_requests_run_on_them(
    fleet: Fleet, triton_double: Any
) -> None:
    leaving, staying, unused = [await triton_double() for _ in range(3)]
    fleet.swap(table(unused))
    fleet.swap(table(leaving, staying))
    running = fleet.enter()
    fleet.swap(table(staying))  # as of a rolling update
    fleet.swap(table(staying))
    fleet.swap(table(staying, killed="now"))
    await soon(lambda: counts(leaving, staying) == [2, 2])
    fleet.leave(running)
    await soon(lambda: running.in_use == 0)  # the messages have been answered
    fleet.swap(table(staying))
    fleet.swap(table(staying, killed="again"))
    await soon(lambda: counts(staying) == [4])
    assert counts(leaving, unused) == [2, 0], "nothing runs there any more"


@pytest.mark.parametrize("still_served", [True, False])
async def test_a_pair_that_is_renamed_or_loses_its_model_with_the_kill_is_told(
    fleet: Fleet, triton_double: Any, still_served: bool
) -> None:
    server = await triton_double()
    fleet.swap(table(server))
    running = fleet.enter()
    renamed = table(server, model="acme-renamed", killed="now")
    fleet.swap(renamed if still_served else compile_table(()), killed={"pair"})
    await soon(lambda: counts(server) == [2])
    assert fleet.current.killed == {"pair"}
    fleet.leave(running)


async def test_a_server_that_is_slow_to_answer_does_not_delay_the_others(
    fleet: Fleet, triton_double: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given up later than the other one is waited for here, however slow the machine.
    monkeypatch.setattr("slipstream_gateway.upstreams.engine_server.CONTROL_TIMEOUT_S", PATIENCE_S)
    slow, well = await triton_double(), await triton_double()
    slow.silent = True
    fleet.swap(table(slow, well))
    fleet.swap(table(slow, well, killed="now"))
    await soon(lambda: counts(well) == [2])
    assert counts(slow) == [1], "it still waits for its first answer"
