"""TextStream: whole characters, the same text however the tokens are split, stop strings against a plain
search."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slipstream_engine.errors import RequestError
from slipstream_engine.text.text_stream import MAX_STOP_CHARACTERS, TextStream
from slipstream_engine.text.tokenizer import Tokenizer

TEXT = st.text(st.sampled_from("ab<|ED\n é你🎉👨‍👩▁"), max_size=40)
STOPS = st.lists(st.text(st.sampled_from("ab<|é你🎉 "), min_size=1, max_size=4), min_size=1, max_size=4)
CUTS = st.lists(st.integers(0, 60), max_size=8)
# No deadline: a busy machine is not a failure.
THOROUGH = settings(deadline=None, max_examples=150)


def chunks(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    """`ids` split at `cuts`; equal or far cuts give empty chunks, which must change nothing."""
    borders = [0, *sorted(cuts), max(len(ids), *cuts, 0) if cuts else len(ids)]
    return [ids[start:end] for start, end in itertools.pairwise(borders)]


def stopped_at(text: str, stop: Sequence[str]) -> int | None:
    """By plain search: where the stop string that is complete first begins, the longest of those."""
    for end in range(1, len(text) + 1):
        if lengths := [len(word) for word in stop if text[:end].endswith(word)]:
            return end - max(lengths)
    return None


def unsettled(text: str, stop: Sequence[str]) -> int:
    """By plain search: how much of the end of `text` may still become a stop string."""
    return max((n for word in stop for n in range(1, len(word)) if text.endswith(word[:n])), default=0)


def whole(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The complete characters of a part of valid text (which has no U+FFFD of its own)."""
    return tokenizer.decode(ids).rstrip("\ufffd")


@THOROUGH
@given(text=TEXT, cuts=CUTS)
def test_any_split_gives_the_text_decoded_at_once(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer, ())
    pieces = [stream.push(chunk).text for chunk in chunks(ids, cuts)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


@THOROUGH
@given(ids=st.lists(st.integers(0, 420), max_size=30), cuts=CUTS)
def test_any_split_of_any_ids_gives_the_text_decoded_at_once(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int]
) -> None:
    stream = TextStream(tokenizer, ())
    pieces = [stream.push(chunk).text for chunk in chunks(ids, cuts)]
    assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


@THOROUGH
@given(text=TEXT)
def test_text_is_never_later_than_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    stream, emitted = TextStream(tokenizer, ()), ""
    for count, token_id in enumerate(ids, start=1):
        emitted += stream.push([token_id]).text
        assert emitted == whole(tokenizer, ids[:count])


def test_unfinished_character_comes_out_at_the_end_only(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a🦊", add_special=False)[:-1]
    stream = TextStream(byte_level, ["stop"])
    assert "".join(stream.push([token_id]).text for token_id in ids) == "a"
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@THOROUGH
@given(text=TEXT, stop=STOPS, cuts=CUTS)
@example(text="ababb", stop=["abb"], cuts=[2])
@example(text="a<|b", stop=["a<|", "<|b", "|"], cuts=[])
@example(text="abab", stop=["abb", "b"], cuts=[])  # a stop string inside another one's beginning
def test_stop_strings_equal_a_plain_search(tokenizer: Tokenizer, text: str, stop: list[str], cuts: list[int]) -> None:
    ids = tokenizer.encode(text)
    full = tokenizer.decode(ids)
    place = stopped_at(full, stop)
    stream, emitted, used, stopped = TextStream(tokenizer, stop), "", 0, False
    for chunk in chunks(ids, cuts):
        delta = stream.push(chunk)
        emitted, used, stopped = emitted + delta.text, used + delta.used, delta.stopped
        assert (full if place is None else full[:place]).startswith(emitted)
    assert stopped == stream.stopped == (place is not None)
    if place is None:
        assert used == len(ids)
        assert emitted + stream.flush() == full
    else:
        counts = range(1, len(ids) + 1)
        assert used == next(n for n in counts if stopped_at(whole(tokenizer, ids[:n]), stop) is not None)
        assert emitted == full[:place]
        assert stream.flush() == ""
        assert stream.push(ids).used == 0


@THOROUGH
@given(text=TEXT, stop=STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(tokenizer: Tokenizer, text: str, stop: list[str]) -> None:
    ids = tokenizer.encode(text)
    stream, emitted = TextStream(tokenizer, stop), ""
    for count, token_id in enumerate(ids, start=1):
        delta = stream.push([token_id])
        emitted += delta.text
        if delta.stopped:
            return
        so_far = whole(tokenizer, ids[:count])
        assert emitted == so_far[: len(so_far) - unsettled(so_far, stop)]


@THOROUGH
@given(text=TEXT, stop=st.just([]) | STOPS, cut=st.integers(0, 40))
def test_a_resumed_stream_stands_where_the_first_one_stood(
    tokenizer: Tokenizer, text: str, stop: list[str], cut: int
) -> None:
    ids = tokenizer.encode(text)
    first = TextStream(tokenizer, stop)
    first.push(ids[:cut])
    resumed = TextStream(tokenizer, stop, resume_ids=ids[:cut])
    assert resumed.stopped == first.stopped
    assert resumed.push(ids[cut:]) == first.push(ids[cut:])
    assert resumed.flush() == first.flush()


def test_stop_string_that_begins_in_resumed_text_stops(byte_level: Tokenizer) -> None:
    before, after = (byte_level.encode(text, add_special=False) for text in ("Hello ST", "OP more"))
    stream = TextStream(byte_level, ["STOP"], resume_ids=before)
    delta = stream.push(after)
    assert (delta.text, delta.stopped) == ("", True)
    assert delta.used < len(after)


def test_stop_text_in_the_prompt_does_not_count(byte_level: Tokenizer) -> None:
    prompt, answer = (byte_level.encode(text, add_special=False) for text in ("STOP ST", "OP go"))
    stream = TextStream(byte_level, ["STOP"], prompt_tail_ids=prompt)
    delta = stream.push(answer)
    assert (delta.text + stream.flush(), delta.stopped) == ("OP go", False)


def test_character_begun_in_the_prompt_is_completed(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("🦊!", add_special=False)
    stream = TextStream(byte_level, (), prompt_tail_ids=ids[:2])
    assert stream.push(ids[2:]).text == "🦊!"


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
def test_first_space_is_dropped_only_where_the_answer_opens_the_text(
    write_folder: Callable[..., Path], kind: str
) -> None:
    tokenizer = Tokenizer.load(write_folder(kind))
    bos, prompt, answer = tokenizer.encode("<|bos|>"), tokenizer.encode("one"), tokenizer.encode("two three")
    for tail, expected in ((), "two three"), (bos[:1], "two three"), ((*prompt, *bos), " two three"):
        assert TextStream(tokenizer, (), prompt_tail_ids=tail).push(answer).text == expected


def test_special_tokens_are_never_text(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["xyz"])
    end = sorted(tokenizer.special_ids)
    ids = [*end, *tokenizer.encode("one", add_special=False), *end]
    assert stream.push(ids).text + stream.flush() == "one"


def test_stop_string_that_is_a_special_token_stops_at_it(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("one <|user|> two", add_special=False)
    stream = TextStream(byte_level, [" <|x", "<|user|>"])
    delta = stream.push(ids)
    assert (delta.text, delta.stopped) == ("one ", True)
    assert ids[delta.used - 1] == byte_level.vocab["<|user|>"]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (["ok", ""], r"stop\[1\] is empty"),
        (["\ud800"], r"stop\[0\]: character 0 is a lone surrogate"),
        (["abcd"] * 10_000, f"stop has 40000 characters in all, more than {MAX_STOP_CHARACTERS}"),
    ],
)
def test_unusable_stop_strings_are_refused(byte_level: Tokenizer, stop: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        TextStream(byte_level, stop)


def test_held_back_text_is_bounded_by_the_longest_stop_string(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, ["a" * 50 + "b"])
    (token_id,) = byte_level.encode("a", add_special=False)
    emitted = "".join(stream.push([token_id]).text for _ in range(2000))
    assert len(emitted) == 1950
    assert len(stream.flush()) == 50
