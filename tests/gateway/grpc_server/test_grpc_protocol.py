"""The gRPC server with clients that speak HTTP/2 by hand: unusual frames, and broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator
from typing import NamedTuple

import hpack
import pytest
from slipstream_gateway.grpc_server.frames import HEADER, PREFACE, ErrorCode, FrameType, frame

from tests.gateway.grpc_server.conftest import Serve, Server
from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.integration

DATA, HEADERS, RST_STREAM, SETTINGS, PING = (
    FrameType.DATA,
    FrameType.HEADERS,
    FrameType.RST_STREAM,
    FrameType.SETTINGS,
    FrameType.PING,
)
GOAWAY, WINDOW_UPDATE, CONTINUATION = FrameType.GOAWAY, FrameType.WINDOW_UPDATE, FrameType.CONTINUATION
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
HEAD = [(":method", "POST"), (":scheme", "http"), (":path", "/test/Echo"), ("content-type", "application/grpc")]
MESSAGE = b"\0\0\0\0\x02hi"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class Client:
    """A connection whose preface and SETTINGS were sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    def head(self, stream: int = 1, flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(HEAD))

    async def receive(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        try:
            high, low, kind, flags, stream = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            payload = await self._reader.readexactly((high << 8) | low)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        return Frame(kind, flags, stream, payload)

    async def receive_kind(self, kind: int, stream: int | None = None) -> Frame:
        """The next frame of `kind`, of one stream; others are skipped."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.receive()) is not None:
                if found.kind == kind and stream in (None, found.stream):
                    return found
        raise AssertionError(f"the connection ended without a frame {kind}")

    async def end(self) -> int | None:
        """The error code with which the server ends the connection, if it does so."""
        code = None
        async with asyncio.timeout(PATIENCE_S):
            while (found := await self.receive()) is not None:
                if found.kind == GOAWAY:
                    code = int.from_bytes(found.payload[4:8], "big")
        return code


@contextlib.asynccontextmanager
async def connected(server: Server, *, settings: bytes = b"") -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    client = Client(reader, writer)
    client.send(PREFACE, frame(SETTINGS, 0, 0, settings))
    try:
        yield client
    finally:
        writer.close()


async def works(server: Server) -> None:
    """A new client is served."""
    async with connected(server) as client:
        client.send(client.head(), frame(DATA, END_STREAM, 1, MESSAGE))
        assert (await client.receive_kind(DATA)).payload == MESSAGE


def status_of(trailers: Frame) -> str:
    """`grpc-status`."""
    return {bytes(name): bytes(value) for name, value in hpack.Decoder().decode(trailers.payload, raw=True)}[
        b"grpc-status"
    ].decode()


def uint32(value: int) -> bytes:
    return struct.pack(">I", value)


async def test_frames_arrive_byte_by_byte(serve: Serve) -> None:
    async with serve() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = Client(reader, writer)
        for byte in PREFACE + frame(SETTINGS, 0, 0) + client.head() + frame(DATA, END_STREAM, 1, MESSAGE):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await client.receive_kind(DATA)).payload == MESSAGE
        assert (await client.receive_kind(HEADERS)).flags == END_STREAM | END_HEADERS
        writer.close()


async def test_unusual_frames_are_understood(serve: Serve) -> None:
    """Padding, a priority, a header block in three frames, an unknown frame, a message in pieces, an empty last one."""
    async with serve() as server, connected(server) as client:
        block = client.encoder.encode([*HEAD, ("x-long", "y" * 200)])
        client.send(
            frame(HEADERS, PADDED | PRIORITY, 1, b"\x03" + bytes(5) + block[:20] + bytes(3)),
            frame(CONTINUATION, 0, 1, block[20:60]),
            frame(CONTINUATION, END_HEADERS, 1, block[60:]),
            frame(FrameType(2), 0, 1, bytes(5)),
            HEADER.pack(0, 4, 0xFA, 0, 1) + b"what",
            frame(DATA, PADDED, 1, b"\x02" + MESSAGE[:3] + bytes(2)),
            frame(DATA, 0, 1, MESSAGE[3:] + MESSAGE[:1]),
            frame(DATA, 0, 1, MESSAGE[1:]),
            frame(DATA, END_STREAM, 1),
        )
        assert (await client.receive_kind(DATA)).payload == MESSAGE
        assert (await client.receive_kind(DATA)).payload == MESSAGE
        assert status_of(await client.receive_kind(HEADERS)) == "0"


async def test_repeated_header_blocks_are_decoded_by_the_table_of_their_time(serve: Serve) -> None:
    """The same bytes mean another path once the table has changed."""
    async with serve() as server, connected(server) as client:
        same = b"\x83\xbe"  # `:method: POST`, and the newest entry of the table
        blocks = [b"\x83\x44\x0a/test/Echo", same, same, b"\x83\x44\x0b/test/Other", same, same]  # 0x44 adds `:path`
        statuses = []
        for place, block in enumerate(blocks):
            client.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * place + 1, block))
            trailers = await client.receive_kind(HEADERS)
            while not trailers.flags & END_STREAM:
                trailers = await client.receive_kind(HEADERS)
            statuses.append(status_of(trailers))
        assert statuses == ["0", "0", "0", "12", "12", "12"]


async def test_windows_of_the_client_are_kept_to(serve: Serve) -> None:
    """A window of 7 bytes, then 1 more, then as much as SETTINGS add."""
    message = b"\0\0\0\0\x0f" + b"0123456789abcde"
    async with serve() as server, connected(server, settings=struct.pack(">HI", 4, 7)) as client:
        client.send(client.head(), frame(DATA, END_STREAM, 1, message))
        assert (await client.receive_kind(DATA)).payload == message[:7]
        client.send(frame(WINDOW_UPDATE, 0, 1, uint32(1)))
        assert (await client.receive_kind(DATA)).payload == message[7:8]
        client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 9)))
        assert (await client.receive_kind(DATA)).payload == message[8:10]
        client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1000)))
        assert (await client.receive_kind(DATA)).payload == message[10:]


async def test_a_window_below_zero_is_waited_for(serve: Serve) -> None:
    """SETTINGS may take from a window what was sent already (RFC 9113, section 6.9.2)."""
    async with serve() as server, connected(server, settings=struct.pack(">HI", 4, 7)) as client:
        client.send(client.head(), frame(DATA, 0, 1, MESSAGE))
        assert (await client.receive_kind(DATA)).payload == MESSAGE
        client.send(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)), frame(DATA, 0, 1, MESSAGE))
        client.send(frame(WINDOW_UPDATE, 0, 1, uint32(7)))  # now 0
        client.send(frame(PING, 0, 0, b"12345678"))
        assert (await client.receive_kind(PING)).payload == b"12345678"
        client.send(frame(WINDOW_UPDATE, 0, 1, uint32(7)))
        assert (await client.receive_kind(DATA)).payload == MESSAGE


async def test_a_client_may_forbid_the_table_of_header_blocks(serve: Serve) -> None:
    """RFC 7541, section 4.2: the next header block confirms the smaller table."""
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 0
    async with serve() as server, connected(server, settings=struct.pack(">HI", 1, 0)) as client:
        for stream in (1, 3):
            client.send(client.head(stream), frame(DATA, END_STREAM, stream, MESSAGE))
            for _ in range(2):
                assert decoder.decode((await client.receive_kind(HEADERS, stream)).payload)


async def test_a_client_with_a_large_window_that_reads_nothing_stops_its_handler(serve: Serve) -> None:
    settings = struct.pack(">HI", 4, 2**31 - 1)
    async with serve() as server, connected(server, settings=settings) as client:
        head = client.encoder.encode([*HEAD[:2], (":path", "/test/Pour"), HEAD[3]])
        client.send(frame(WINDOW_UPDATE, 0, 0, uint32(2**31 - 1 - 65_535)))
        client.send(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, 0, 1, MESSAGE))
        await asyncio.sleep(0.5)
        assert server.ended.count("poured") < 20  # as many as the sockets hold
        client.send(frame(PING, 0, 0, bytes(8)))  # an honest client is not taken for one that reads no answers
        received = 0
        while received < 100 * 1_000_005:
            received += len((await client.receive_kind(DATA, 1)).payload)


async def test_a_message_that_is_given_up_ends_its_call(serve: Serve) -> None:
    """The next one would be taken for the rest of it."""
    async with serve() as server, connected(server) as client:
        head = client.encoder.encode([*HEAD[:2], (":path", "/test/GiveUp"), HEAD[3]])
        client.send(frame(HEADERS, END_HEADERS, 1, head))
        reset = await client.receive_kind(RST_STREAM, 1)
        assert reset.payload == uint32(ErrorCode.INTERNAL_ERROR)


async def test_messages_that_are_never_whole_are_bounded_together(serve: Serve) -> None:
    """Twelve of nearly 2 MB, with room for 12 MB."""
    async with serve() as server, connected(server) as client:
        begun = b"\0" + uint32(2_000_000)
        failed = 0
        for place in range(12):
            stream = 2 * place + 1
            client.send(client.head(stream), frame(DATA, 0, stream, begun))
            for _ in range(110):
                client.send(frame(DATA, 0, stream, bytes(16_384)))
            await client.writer.drain()
        client.send(frame(PING, 0, 0, bytes(8)))
        async with asyncio.timeout(PATIENCE_S):
            while (found := await client.receive()) is not None and found.kind != PING:
                failed += found.kind == HEADERS and bool(found.flags & END_STREAM)
        assert failed >= 4


async def test_what_was_sent_arrives_although_the_server_stops(serve: Serve) -> None:
    async with contextlib.AsyncExitStack() as running:
        server = await running.enter_async_context(serve())
        settings = struct.pack(">HI", 4, 2**31 - 1)
        async with connected(server, settings=settings) as client:
            message = bytes(3_000_000)
            client.send(frame(WINDOW_UPDATE, 0, 0, uint32(2**31 - 1 - 65_535)), client.head())
            data = b"\0" + uint32(len(message)) + message
            for start in range(0, len(data), 16_384):
                client.send(frame(DATA, 0, 1, data[start : start + 16_384]))
            client.send(frame(DATA, END_STREAM, 1))
            await client.writer.drain()
            stopping = asyncio.ensure_future(running.aclose())
            await asyncio.sleep(0.3)  # this client is slow
            received = 0
            while received < len(data):
                received += len((await client.receive_kind(DATA, 1)).payload)
            assert status_of(await client.receive_kind(HEADERS, 1)) == "0"
            await stopping


async def test_calls_over_the_limit_are_refused(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        for place in range(1025):
            client.send(client.head(stream=2 * place + 1))
        found = await client.receive_kind(RST_STREAM)
        assert (found.stream, found.payload) == (2049, uint32(ErrorCode.REFUSED_STREAM))


async def test_calls_that_are_reset_at_once_leave_nothing(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        for place in range(4000):
            client.send(client.head(2 * place + 1), frame(RST_STREAM, 0, 2 * place + 1, bytes(4)))
            if place % 100 == 0:
                await client.writer.drain()
        client.send(frame(PING, 0, 0, bytes(8)))  # some may be refused until their tasks have ended
        await client.receive_kind(PING)
        client.send(client.head(20_001), frame(DATA, END_STREAM, 20_001, MESSAGE))
        assert (await client.receive_kind(DATA, 20_001)).payload == MESSAGE


BROKEN = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no SETTINGS": (PREFACE + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a long frame": (b"\x00\x40\x01\x00\x00" + uint32(1), ErrorCode.FRAME_SIZE_ERROR),
    "an even stream": (frame(HEADERS, END_HEADERS, 2, b"\x83"), ErrorCode.PROTOCOL_ERROR),
    "data before its head": (frame(DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data of the connection": (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "a reset before its head": (frame(RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    "a short reset": (frame(RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    "an endless integer": (frame(HEADERS, END_HEADERS, 1, b"\xff" * 5), ErrorCode.COMPRESSION_ERROR),
    "an index that is none": (frame(HEADERS, END_HEADERS, 1, b"\xfe"), ErrorCode.COMPRESSION_ERROR),
    "too much padding": (frame(HEADERS, PADDED, 1, b"\x09\x83"), ErrorCode.PROTOCOL_ERROR),
    "padding of an empty frame": (frame(HEADERS, PADDED, 1), ErrorCode.PROTOCOL_ERROR),
    "an interrupted block": (frame(HEADERS, 0, 1, b"\x83") + frame(PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(CONTINUATION, END_HEADERS, 1, b"\x83"), ErrorCode.PROTOCOL_ERROR),
    "a block without an end": (
        frame(HEADERS, 0, 1, b"\x83") + frame(CONTINUATION, 0, 1, bytes(16_384)) * 3,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "a short SETTINGS": (frame(SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "a window that is too large": (frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
    "a window that grows too far": (frame(WINDOW_UPDATE, 0, 0, uint32(2**31 - 1)), ErrorCode.FLOW_CONTROL_ERROR),
    "a window that does not grow": (frame(WINDOW_UPDATE, 0, 0, uint32(0)), ErrorCode.FLOW_CONTROL_ERROR),
    "a short WINDOW_UPDATE": (frame(WINDOW_UPDATE, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a short PING": (frame(PING, 0, 0, b"1"), ErrorCode.FRAME_SIZE_ERROR),
    "a pushed stream": (frame(FrameType.PUSH_PROMISE, 0, 1, uint32(2)), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
async def test_a_client_that_breaks_the_protocol_is_disconnected(serve: Serve, sent: bytes, code: ErrorCode) -> None:
    async with serve() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        is_whole = sent.startswith((PREFACE, b"GET"))
        writer.write(sent if is_whole else PREFACE + frame(SETTINGS, 0, 0) + sent)
        assert await Client(reader, writer).end() == code
        writer.close()
        await works(server)


async def test_two_heads_of_one_call_disconnect(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        client.send(client.head(), client.head())
        assert await client.end() == ErrorCode.PROTOCOL_ERROR


async def test_a_client_that_ignores_its_window_is_disconnected(serve: Serve) -> None:
    """Messages that wait for their reader: `/test/Pour` reads one."""
    async with serve() as server, connected(server) as client:
        head = client.encoder.encode([*HEAD[:2], (":path", "/test/Pour"), HEAD[3]])
        client.send(frame(HEADERS, END_HEADERS, 1, head))
        for _ in range(80):
            client.send(frame(DATA, 0, 1, b"\0\0\0\x3f\xfb" + bytes(16_379)))
        assert await client.end() == ErrorCode.FLOW_CONTROL_ERROR


async def test_data_after_the_end_disconnects(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        head = client.encoder.encode([*HEAD[:2], (":path", "/test/Pour"), HEAD[3]])
        client.send(frame(HEADERS, END_HEADERS, 1, head), frame(DATA, END_STREAM, 1, MESSAGE), frame(DATA, 0, 1, b"x"))
        assert await client.end() == ErrorCode.STREAM_CLOSED


async def test_a_message_that_is_cut_off_ends_its_call(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        client.send(client.head(), frame(DATA, END_STREAM, 1, MESSAGE[:-1]))
        trailers = await client.receive_kind(HEADERS)
        while not trailers.flags & END_STREAM:
            trailers = await client.receive_kind(HEADERS)
        assert status_of(trailers) == "13"


async def test_a_client_that_reads_no_answers_is_disconnected(serve: Serve) -> None:
    """PINGs without end."""
    async with serve() as server, connected(server) as client:
        pings = frame(PING, 0, 0, bytes(8)) * 10_000
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    client.send(pings)
                    await client.writer.drain()
        await works(server)


async def test_random_bytes_never_stop_the_server(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """2,000 connections with frames that are damaged at random places."""
    generator = random.Random(20)
    async with serve() as server:
        for _ in range(2000):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            client = Client(reader, writer)
            frames = [
                frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 70_000)),
                client.head(),
                frame(DATA, 0, 1, MESSAGE),
                client.head(3),
                frame(WINDOW_UPDATE, 0, 0, uint32(5)),
                frame(DATA, END_STREAM, 3, MESSAGE),
                frame(RST_STREAM, 0, 1, bytes(4)),
            ]
            data = bytearray(PREFACE + b"".join(frames))
            for _ in range(generator.randrange(1, 4)):
                data[generator.randrange(len(PREFACE), len(data))] = generator.randrange(256)
            writer.write(data[: generator.randrange(len(PREFACE), len(data) + 1)])
            writer.write_eof()
            writer.close()
        await works(server)
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_reset_calls_have_sent_is_forgotten(serve: Serve) -> None:
    """Twenty times 0.8 MB, with room for 12 MB."""
    async with serve() as server, connected(server) as client:
        for stream in range(1, 41, 2):
            client.send(client.head(stream), frame(DATA, 0, stream, b"\0" + uint32(2_000_000)))
            client.send(*[frame(DATA, 0, stream, bytes(16_384))] * 50, frame(RST_STREAM, 0, stream, bytes(4)))
            await client.writer.drain()
        size = 50 * 16_384 - 5
        client.send(client.head(101), frame(DATA, 0, 101, b"\0" + uint32(size) + bytes(16_379)))
        client.send(*[frame(DATA, 0, 101, bytes(16_384))] * 49)
        kinds: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(kinds) < 2 and (found := await client.receive()) is not None:
                kinds += [found.kind] if found.stream == 101 and found.kind in (HEADERS, DATA) else []
        assert kinds == [HEADERS, DATA], "an answer, not a status"


FLOODS = {
    "PING": frame(PING, 0, 0, bytes(8)),
    "SETTINGS": frame(SETTINGS, 0, 0),
    "acknowledged SETTINGS": frame(SETTINGS, 1, 0),
    "WINDOW_UPDATE": frame(WINDOW_UPDATE, 0, 3, uint32(1)),
    "PRIORITY": frame(FrameType(2), 0, 1, bytes(5)),
    "unknown frames": HEADER.pack(0, 0, 0xFA, 0, 1),
    "empty DATA": frame(DATA, 0, 1),
    "padded DATA": frame(DATA, PADDED, 1, b"\x03" + bytes(3)),
    "a message byte by byte": frame(DATA, 0, 1, b"\0"),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_frames_without_a_message_disconnects(serve: Serve, flood: bytes) -> None:
    """CVE-2019-9511 to 9518."""
    async with serve() as server, connected(server) as client:
        client.send(client.head(), frame(DATA, 0, 1, b"\0\0\1\0\0"), flood * 20_000)
        assert await client.end() == ErrorCode.ENHANCE_YOUR_CALM
        await works(server)


async def test_a_flood_of_trailers_of_an_ended_call_disconnects(serve: Serve) -> None:
    async with serve() as server, connected(server) as client:
        client.send(client.head(flags=END_HEADERS | END_STREAM))
        while not (await client.receive_kind(HEADERS)).flags & END_STREAM:
            pass
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x83") * 20_000)
        assert await client.end() == ErrorCode.ENHANCE_YOUR_CALM


async def test_a_flood_of_empty_continuations_disconnects(serve: Serve) -> None:
    """CVE-2024-27316."""
    async with serve() as server, connected(server) as client:
        client.send(frame(HEADERS, 0, 1, client.encoder.encode(HEAD)), frame(CONTINUATION, 0, 1) * 20_000)
        assert await client.end() == ErrorCode.ENHANCE_YOUR_CALM
        await works(server)


async def test_a_flood_of_calls_that_are_reset_disconnects(serve: Serve) -> None:
    """CVE-2023-44487."""
    async with serve() as server, connected(server) as client:
        head = client.encoder.encode(HEAD)
        for stream in range(1, 40_001, 2):
            client.send(frame(HEADERS, END_HEADERS, stream, head), frame(RST_STREAM, 0, stream, bytes(4)))
        assert await client.end() == ErrorCode.ENHANCE_YOUR_CALM
        await works(server)


async def test_a_header_block_that_resizes_the_table_without_end_disconnects(serve: Serve) -> None:
    """Two changes of the size are allowed (RFC 7541, section 4.2)."""
    async with serve() as server:
        async with connected(server) as client:
            client.send(frame(HEADERS, END_HEADERS, 1, b"\x20\x3f\xe1\x1f" + client.encoder.encode(HEAD)))
            client.send(frame(DATA, END_STREAM, 1, MESSAGE))
            assert (await client.receive_kind(DATA)).payload == MESSAGE
        async with connected(server) as client:
            client.send(frame(HEADERS, END_HEADERS, 1, b"\x3f\xe1\x1f" * 3))
            assert await client.end() == ErrorCode.COMPRESSION_ERROR


async def test_calls_that_are_answered_pay_for_their_control_frames(serve: Serve) -> None:
    """Six frames without a message for each call, 3,000 times on one connection."""
    async with serve() as server, connected(server) as client:
        head = client.encoder.encode(HEAD)
        for stream in range(1, 6_001, 2):
            client.send(frame(HEADERS, END_HEADERS, stream, head), frame(DATA, 0, stream, MESSAGE))
            client.send(*[frame(WINDOW_UPDATE, 0, each, uint32(7)) for each in (0, stream, 0, stream)])
            client.send(frame(DATA, END_STREAM, stream))
            assert (await client.receive_kind(DATA)).payload == MESSAGE


async def test_other_tasks_run_between_the_frames_of_a_client(serve: Serve) -> None:
    """9,000 frames that arrive at once take at least as many turns of the event loop as they are shares of 64."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with serve() as server, connected(server) as client:
        counting = asyncio.ensure_future(count())
        client.send(frame(PING, 0, 0, bytes(8)) * 9_000)
        for _ in range(9_000):
            await client.receive_kind(PING)
        counting.cancel()
        assert turns >= 9_000 // 64


async def test_empty_messages_count_against_the_memory(serve: Serve) -> None:
    """200,000 in one window, while their handler waits for the client's."""
    async with serve() as server, connected(server, settings=struct.pack(">HI", 4, 0)) as client:
        client.send(client.head(), *[frame(DATA, 0, 1, bytes(16_380))] * 60)
        client.send(frame(WINDOW_UPDATE, 0, 1, uint32(1_000)))
        await client.receive_kind(HEADERS)
        assert status_of(await client.receive_kind(HEADERS)) == "8"


async def test_a_connection_that_does_not_begin_is_closed(serve: Serve) -> None:
    async with serve(preface_s=0.2) as server:
        for sent in (b"", PREFACE[:5], PREFACE):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent)
            assert await Client(reader, writer).end() == ErrorCode.PROTOCOL_ERROR
            writer.close()
        await works(server)


async def test_idle_connections_make_room_for_new_ones(serve: Serve) -> None:
    """One with a call stays, and so does one that had a call, as long as another has not."""
    async with serve(connections=3) as server, connected(server) as busy, connected(server) as idle:
        busy.send(busy.head(), frame(DATA, 0, 1, MESSAGE))
        await busy.receive_kind(DATA)
        idle.send(idle.head(), frame(DATA, END_STREAM, 1, MESSAGE))
        await idle.receive_kind(DATA)
        silent, *others = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
        for reader, writer in (silent, *others[:-1]):
            assert await Client(reader, writer).end() == ErrorCode.NO_ERROR
            writer.close()
        others[-1][1].close()
        idle.send(idle.head(3), frame(DATA, END_STREAM, 3, MESSAGE))
        assert (await idle.receive_kind(DATA)).payload == MESSAGE
        busy.send(frame(DATA, END_STREAM, 1, MESSAGE))
        assert (await busy.receive_kind(DATA)).payload == MESSAGE


async def test_connections_over_the_limit_are_dropped(serve: Serve) -> None:
    async with serve(connections=1) as server, connected(server) as busy:
        busy.send(busy.head(), frame(DATA, 0, 1, MESSAGE))
        await busy.receive_kind(DATA)
        async with connected(server) as other:
            assert await other.end() is None
        busy.send(frame(DATA, END_STREAM, 1, MESSAGE))
        assert (await busy.receive_kind(DATA)).payload == MESSAGE


async def test_call_that_was_sent_before_the_client_knew_the_end_is_served(serve: Serve) -> None:
    running = contextlib.AsyncExitStack()
    server = await running.enter_async_context(serve())
    async with connected(server) as client:
        client.send(client.head(), frame(DATA, END_STREAM, 1, MESSAGE))
        await client.receive_kind(DATA)
        stopping = asyncio.ensure_future(running.aclose())
        first = await client.receive_kind(GOAWAY)
        assert int.from_bytes(first.payload[:4], "big") == 2**31 - 1
        ping = await client.receive_kind(PING)
        client.send(client.head(3), frame(DATA, END_STREAM, 3, MESSAGE), frame(PING, 1, 0, ping.payload))
        assert (await client.receive_kind(DATA, 3)).payload == MESSAGE
        second = await client.receive_kind(GOAWAY)
        assert second.payload == (3).to_bytes(4, "big") + bytes(4)
    await stopping


async def test_client_that_does_not_answer_holds_the_end_up_for_a_second(serve: Serve) -> None:
    running = contextlib.AsyncExitStack()
    server = await running.enter_async_context(serve())
    async with connected(server) as client:
        client.send(client.head(), frame(DATA, END_STREAM, 1, MESSAGE))
        await client.receive_kind(DATA)
        stopping = asyncio.ensure_future(running.aclose())
        ends = [(await client.receive_kind(GOAWAY)).payload[:4] for _ in range(2)]
        assert ends == [(2**31 - 1).to_bytes(4, "big"), (1).to_bytes(4, "big")]
    await stopping
