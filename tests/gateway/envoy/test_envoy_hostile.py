"""The filter's gRPC service with messages as no Envoy sends them, from a client of grpcio."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from slipstream_gateway.extproc import filter as filter_module
from slipstream_gateway.extproc.messages import METHOD, BodySendMode, ProcessingRequest, ProcessingResponse

from tests.gateway.gateway_thread import Gateway
from tests.gateway.openai_server import OpenAiServer
from tests.gateway.pair_manifest import manifest_text
from tests.support.polling import PATIENCE_S
from tests.support.ports import lasting_ports

pytestmark = pytest.mark.integration
BODY = b'{"model": "acme", "prompt": "tokens=1"}'
Ask = Callable[..., list[Any]]


@pytest.fixture
def ask(
    tmp_path: Path,
    openai_server: Callable[..., OpenAiServer],
    run_gateway: Callable[..., contextlib.AbstractContextManager[Gateway]],
) -> Any:
    """Sends the head with `headers` and the body of one request; returns the answers to both."""
    [port] = lasting_ports(1)
    text = manifest_text([openai_server().url])
    with (
        run_gateway(tmp_path / "pair.yaml", text, ext_proc=f"127.0.0.1:{port}"),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        method = channel.stream_stream(
            METHOD,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )

        def run(*headers: tuple[str, bytes], messages: Iterable[Any] | None = None) -> list[Any]:
            answers = []
            for answer in method(iter(messages or _messages(headers)), timeout=PATIENCE_S):
                answers.append(answer)
                if len(answers) == 2 or answer.HasField("immediate_response"):
                    break
            return answers

        yield run


def _messages(headers: Sequence[tuple[str, bytes]]) -> list[Any]:
    first, body = ProcessingRequest(), ProcessingRequest()
    pseudo = ((":method", b"POST"), (":path", b"/v1/completions"), ("content-type", b"application/json"))
    for name, value in (*pseudo, *headers):
        first.request_headers.headers.headers.add(key=name, raw_value=value)
    first.protocol_config.request_body_mode = BodySendMode.BUFFERED
    first.protocol_config.response_body_mode = BodySendMode.STREAMED
    body.request_body.body, body.request_body.end_of_stream = BODY, True
    return [first, body]


def _sent_headers(answers: Sequence[Any]) -> dict[str, bytes]:
    """The headers that Envoy sends to the server."""
    changes = answers[-1].request_body.response.header_mutation.set_headers
    return {change.header.key: bytes(change.header.raw_value) for change in changes}


@pytest.mark.parametrize("name", ["traceparent", "authorization", "x-request-id", "x-slipstream-mode", "x-other"])
@pytest.mark.parametrize("bad", [b"\r\nx-injected: 1", b"\n", b"\0", b"\x7f"])
def test_a_header_with_a_control_character_is_refused(ask: Ask, name: str, bad: bytes) -> None:
    [answer] = ask((name, b"00-x" + bad))
    assert answer.immediate_response.status.code == 400


@pytest.mark.parametrize("trace", [b"x" * 600, b"\xc3\xa9", b"a b", b"00-" + b"A" * 32 + b"-" + b"b" * 16 + b"-01"])
def test_a_trace_header_in_no_known_form_is_not_passed_on(ask: Ask, trace: bytes) -> None:
    assert "traceparent" not in _sent_headers(ask(("traceparent", trace)))


def test_a_trace_header_is_passed_on(ask: Ask) -> None:
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    assert _sent_headers(ask(("traceparent", trace)))["traceparent"] == trace


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (b"\xb2", 400),  # a digit to Python, in Latin-1
        ("٣".encode(), 400),
        (b"3_9", 400),
        (b"+39", 400),
        (b"-1", 400),
        (b"39, 39", 400),
        (b"", 400),
        (b"9" * 5_000, 413),
        (b"9" * 20, 413),
    ],
)
def test_a_length_in_odd_digits_is_refused(
    ask: Ask, caplog: pytest.LogCaptureFixture, length: bytes, status: int
) -> None:
    answer = ask(("content-length", length))[-1]
    assert answer.immediate_response.status.code == status
    assert not [record for record in caplog.records if record.exc_info]


def test_a_length_with_zeros_before_it_is_taken(ask: Ask) -> None:
    assert _sent_headers(ask(("content-length", b"0" * 5_000 + b"39")))["content-length"].isdigit()


def test_a_stream_that_begins_with_nothing_ends(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise streams of a client that sends nothing would take the places of Envoy's."""
    monkeypatch.setattr(filter_module, "_FIRST_MESSAGE_S", 0.1)
    ended = threading.Event()

    def nothing() -> Iterator[Any]:
        ended.wait(PATIENCE_S)
        yield from ()

    with pytest.raises(grpc.RpcError) as raised:
        ask(messages=nothing())
    ended.set()
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert raised.value.details() == "a stream began without a message"
