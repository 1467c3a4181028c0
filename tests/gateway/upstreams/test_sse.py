"""Framing: however the bytes are cut, whole events come out, all of them, in order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slipstream_core.errors import UpstreamFailed
from slipstream_gateway.upstreams.base import Usage
from slipstream_gateway.upstreams.openai_wire import take_usage
from slipstream_gateway.upstreams.sse import (
    MAX_EVENT_BYTES,
    EventSplitter,
    count_events,
    data_of_events,
    event_data,
    split_events,
)

TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Events, and their bytes with one kind of line end, cut anywhere."""
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    events = [b"data: " + text.encode() + b"\n\n" for text in draw(st.lists(TEXT, max_size=8))]
    whole = b"".join(events).replace(b"\n", end)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    edges = [0, *cuts, len(whole)]
    return events, [whole[a:b] for a, b in itertools.pairwise(edges)]


@given(cut_streams())
def test_any_cut_gives_every_event_whole_and_in_order(stream: tuple[list[bytes], list[bytes]]) -> None:
    events, parts = stream
    splitter = EventSplitter()
    blocks = [splitter.feed(part) for part in parts]
    assert [event for block in blocks for event in split_events(block)] == events
    assert sum(map(count_events, blocks)) == len(events)
    assert splitter.tail == b""


@example(([b"data: 1\n\n"], [b"data: 1\r", b"", b"\n\r\n"]), b"d")
@given(cut_streams(), st.binary(min_size=1, max_size=9).filter(lambda tail: not {*tail} & {*b"\r\n"}))
def test_half_an_event_is_never_let_through(stream: tuple[list[bytes], list[bytes]], half: bytes) -> None:
    events, parts = stream
    splitter = EventSplitter()
    out = b"".join([splitter.feed(part) for part in [*parts, half]])
    assert out == b"".join(events)
    assert splitter.tail == half


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"x" * MAX_EVENT_BYTES) == b""
    with pytest.raises(UpstreamFailed):
        splitter.feed(b"x")


def test_data_lines_of_an_event_are_joined() -> None:
    assert event_data(b": comment\ndata: a\ndata:b\n\n") == b"a\nb"


LINES = st.lists(st.sampled_from([b"data: {}", b"data:{}", b"data: ", b": ping", b"event: x", b"datax: y"]), min_size=1)


@given(st.lists(LINES, max_size=4))
def test_data_of_a_block_is_that_of_its_events(events: list[list[bytes]]) -> None:
    block = b"".join(b"\n".join(lines) + b"\n\n" for lines in events)
    assert data_of_events(block) == [event_data(event) for event in split_events(block)]


@pytest.mark.parametrize("keep", [True, False])
def test_usage_is_read_and_its_event_dropped_unless_asked_for(keep: bool) -> None:
    text = b'data: {"choices": [{"delta": {"content": "the \\"usage\\": {"}}], "usage": null}\n\n'
    details = b'"completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1}'
    only = b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 9, %s}}\n\n' % details
    usage = Usage(exact=False)
    out = take_usage(text + only + b"data: [DONE]\n\n", usage, keep=keep)
    assert out == text + (only if keep else b"") + b"data: [DONE]\n\n"
    assert (usage.prompt_tokens, usage.output_tokens, usage.drafted, usage.accepted) == (2, 9, 4, 3)
    assert usage.exact


def test_usage_beside_text_stays() -> None:
    event = b'data: {"choices": [{"index": 0}], "usage": {"completion_tokens": 4}}\n\n'
    usage = Usage(exact=False)
    assert take_usage(event, usage, keep=False) == event
    assert usage.output_tokens == 4
