"""The writer's files: their rows, when they are written and deleted, and what happens without a disk."""

from __future__ import annotations

import datetime
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest.capture import Capture, Redaction
from slipstream_gateway.capture.frames import CaptureCount, Captured, Configured, FrameReader, Result, encode_frame
from slipstream_gateway.capture.store import CaptureStore, check_location
from slipstream_gateway.capture.writer import FLUSH_S, Writer
from slipstream_tools.drafts.forget import forget

from tests.gateway.capture.captures import PAIR, captured, rows_of

NO_BUCKET = "expected s3://BUCKET/PREFIX, without credentials: those come from the variables AWS_*"
DAY = datetime.timedelta(days=1)


class Bench:
    """A writer with its clock and what it reports."""

    def __init__(self, folder: Path, *, patience_s: float = 5.0) -> None:
        self.store = CaptureStore.at(str(folder))
        self.now = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)
        self.clock_s = 0.0
        self.results: Counter[Result] = Counter()
        self.writer = Writer(
            self.store,
            self._report,
            clock_s=lambda: self.clock_s,
            now=lambda: self.now,
            sleep=self._sleep,
            patience_s=patience_s,
        )

    def configure(self, pair: str = PAIR, **changes: Any) -> None:
        self.writer.take(Configured(pair=pair, capture=Capture(share=1.0, **changes)))

    def row_of(self, answer: Captured) -> dict[str, Any]:
        """The row of the only answer."""
        self.configure()
        self.writer.take(answer)
        self.writer.close()
        [row] = rows_of(self.store)
        return row

    def pass_s(self, seconds: float) -> None:
        self.clock_s += seconds
        self.writer.tick()

    def _report(self, report: CaptureCount) -> None:
        self.results[report.result] += report.answers

    def _sleep(self, seconds: float) -> None:
        self.clock_s += seconds


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "captures")


def test_an_answer_is_a_row_with_its_exact_tokens(bench: Bench) -> None:
    bench.configure()
    bench.writer.take(captured())
    assert rows_of(bench.store) == []
    bench.pass_s(FLUSH_S)
    [row] = rows_of(bench.store)
    assert row["request"] == '{"messages":[{"role":"user","content":"How are you?"}]}'
    assert (row["answer"], row["token_ids"], row["prompt_token_ids"]) == ("Fine, thank you.", [5, 6, 7], [1, 2])
    assert (row["request_class"], row["drafted"], row["accepted"], row["rejected_at"]) == (
        "open_chat/short",
        8,
        2,
        [1, 1],
    )
    assert row["time"].isoformat() == "2026-11-30T00:53:20.250000+00:00"
    assert bench.results == {Result.WRITTEN: 1}


def test_an_answer_of_events_is_read(bench: Bench) -> None:
    wire = b'data: {"choices":[{"delta":{"content":"Fi"}}]}\n\n'
    wire += b'data: {"choices":[{"delta":{"content":"ne."},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    row = bench.row_of(captured(wire=(wire[:50], wire[50:]), stream=True))
    assert (row["answer"], row["finish_reason"], row["token_ids"]) == ("Fine.", "length", [5, 6, 7])


@pytest.mark.parametrize("place", ["prompt", "text", "system", "tool"])
def test_a_redacted_answer_has_no_tokens(bench: Bench, place: str) -> None:
    """They would show what the texts hide."""
    secret = "jane@example.org"
    messages = [{"role": "system", "content": secret if place == "system" else "Be short."}]
    messages.append({"role": "user", "content": f"I am {secret}" if place == "prompt" else "Hello"})
    body: dict[str, Any] = {"model": "acme", "messages": messages}
    if place == "tool":
        body["tools"] = [{"type": "function", "function": {"name": "f", "description": secret}}]
    row = bench.row_of(captured(f"Hi {secret}" if place == "text" else "Hi", body=body))
    assert (row["token_ids"], row["prompt_token_ids"], row["redactions"]) == (None, None, 1)
    assert secret not in str(row)
    assert "[email]" in row["request"] + row["answer"]


def test_reasoning_and_tool_calls_are_kept_as_text_without_tokens(bench: Bench) -> None:
    message = '{"choices":[{"message":{"reasoning_content":"Hm.","content":"Yes.","tool_calls":['
    message += '{"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}]}'
    row = bench.row_of(captured(wire=(message.encode(),)))
    assert (row["reasoning"], row["answer"], row["token_ids"]) == ("Hm.", "Yes.\nf{}", None)


def test_media_are_left_out(bench: Bench) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:AAAA"}}]
    parts.append({"image_url": {"url": "data:image/png;base64,AAAA"}})
    row = bench.row_of(captured(body={"model": "acme", "messages": [{"role": "user", "content": parts}]}))
    assert row["request"].count('{"type":"image_url"}') == 2
    assert "AAAA" not in row["request"]


def test_an_answer_in_another_form_is_counted(bench: Bench) -> None:
    bench.configure()
    bench.writer.take(captured(wire=(b"<html>",)))
    bench.writer.take(captured(body=[]))
    bench.writer.take(captured(body={"model": "acme", "prompt": [1, 2, 3]}))  # ids, which may stand for a secret
    bench.writer.close()
    bench.writer.take(captured(wire=(b'{"output":[{"type":"message"}]}',)))
    bench.writer.close()
    assert bench.results == {Result.UNREADABLE: 4}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "Hi"}], "documents": [{"text": "I am jane@example.org"}]},
        {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"name": "jane@example.org"}},
    ],
)
def test_fields_that_are_not_kept_are_looked_at_for_the_tokens(bench: Bench, body: dict[str, Any]) -> None:
    """A server may render them into the prompt."""
    row = bench.row_of(captured(body={"model": "acme", **body}))
    assert (row["token_ids"], row["prompt_token_ids"]) == (None, None)


def test_the_callers_name_for_its_user_costs_no_tokens(bench: Bench) -> None:
    body = {"model": "acme", "messages": [{"role": "user", "content": "Hi"}], "user": "jane@example.org"}
    row = bench.row_of(captured(body=body))
    assert row["token_ids"] is not None
    assert "jane" not in str(row)


def _parts(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


@pytest.mark.parametrize(
    ("body", "text", "pieces"),
    [
        ({"prompt": "card 4111 1111 "}, "1111 1111 is it", ["4111", "1111"]),
        ({"messages": [{"role": "assistant", "content": "password="}]}, "hunter2hunter2", ["hunter2"]),
        ({"messages": [_parts("jane@", "b.org")]}, "", ["jane", "b.org"]),
        ({"messages": [_parts("ghp_a1B2c3D4e5F6", "g7H8i9J0k1L2", "m3N4o5P6q7R8")]}, "", ["a1B2", "g7H8", "m3N4"]),
        (
            {
                "messages": [
                    {"role": "user", "content": "First half: ghp_a1B2c3D4e5F6g7H8"},
                    {"role": "assistant", "content": "And the second?"},
                    {"role": "user", "content": "i9J0k1L2m3N4o5P6q7R8 is all"},
                ]
            },
            "",
            ["a1B2", "i9J0"],
        ),
        (
            {
                "messages": [
                    _parts("-----BEGIN PRIVATE KEY-----\nMIIEvQIB", "ADANBgkq\nAgMB", "-----END PRIVATE KEY-----")
                ]
            },
            "",
            ["MIIE", "ADAN", "AgMB"],
        ),
    ],
)
def test_what_several_texts_show_together_is_replaced(
    bench: Bench, body: dict[str, Any], text: str, pieces: list[str]
) -> None:
    row = bench.row_of(captured(text, body={"model": "acme", **body}))
    assert not [piece for piece in pieces if piece in row["request"] + row["answer"]]
    assert (row["token_ids"], row["prompt_token_ids"]) == (None, None)


def test_a_text_after_a_secret_stays(bench: Bench) -> None:
    messages = [_parts("I am jane@example.org"), {"role": "assistant", "content": "Hello"}]
    messages.append({"role": "user", "content": "My password: hunter2"})
    row = bench.row_of(captured("Thanks, but never send one.", body={"model": "acme", "messages": messages}))
    assert "Hello" in row["request"]
    assert row["answer"] == "Thanks, but never send one."
    assert (row["redactions"], "hunter2" in row["request"]) == (2, False)


def test_the_first_of_two_equal_names_is_replaced(bench: Bench) -> None:
    prompt = 'Check {"password": "hunter2hunter2", "password": ""}'
    assert "hunter2" not in bench.row_of(captured(prompt=prompt))["request"]


def test_patterns_that_take_too_long_are_interrupted(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "captures", patience_s=0.2)
    bench.configure(patterns=(Redaction(name="slow", pattern="(a+)+$"),))
    bench.writer.take(captured("a" * 60 + "!"))
    bench.writer.take(captured())
    bench.writer.close()
    assert bench.results == {Result.TOO_SLOW: 1, Result.WRITTEN: 1}


def test_a_value_that_fits_no_column_costs_its_answer_alone(bench: Bench) -> None:
    bench.configure()
    bench.writer.take(captured())
    bench.writer.take(captured(token_ids=(2**31,)))
    bench.writer.close()
    assert bench.results == {Result.UNREADABLE: 1, Result.WRITTEN: 1}


def test_files_that_a_killed_writer_left_are_deleted(bench: Bench) -> None:
    bench.configure()
    bench.writer.take(captured())
    bench.writer.close()
    [file] = bench.store.files()
    path = Path(file.path)
    left = path.with_name(f".{path.name}")
    left.write_bytes(path.read_bytes())
    foreign = [Path(bench.store._root, name) for name in (".env", "lost+found/.x", "serving.acme/.keep", "b/c/.bashrc")]
    for other in foreign:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.touch()
        os.utime(other, (0, 0))
    bench.now = datetime.datetime.now(datetime.UTC)
    bench.pass_s(0)
    assert left.exists()  # perhaps it is being written
    bench.now += datetime.timedelta(minutes=11)
    bench.pass_s(3600)
    assert not left.exists()
    assert all(other.exists() for other in foreign)


def test_a_day_holds_no_more_than_its_limit(bench: Bench) -> None:
    bench.configure(max_bytes_per_day=12_000, max_key_share=1)
    for _ in range(4):
        bench.writer.take(captured())
        bench.pass_s(FLUSH_S)
    assert bench.results[Result.WRITTEN] < 4
    assert bench.results[Result.DAY_FULL] > 0
    assert sum(file.size_bytes for file in bench.store.files()) <= 12_000
    written = bench.results[Result.WRITTEN]
    bench.now += DAY
    bench.writer.take(captured())
    bench.pass_s(FLUSH_S)
    assert bench.results[Result.WRITTEN] == written + 1


def test_one_key_does_not_fill_the_day(bench: Bench) -> None:
    """Its files of other gateways count. Answers without a key have no share."""
    bench.configure(max_bytes_per_day=1_000_000, max_key_share=0.05)
    other = Bench(Path(bench.store._root))
    other.configure(max_bytes_per_day=1_000_000, max_key_share=0.05)
    for _ in range(4):
        for gateway in (bench, other):
            for key, size in (("greedy", 40_000), ("small", 10), ("", 10)):
                gateway.writer.take(captured(os.urandom(size // 2).hex(), key=key))
            gateway.pass_s(FLUSH_S)
    keys = Counter(row["key"] for row in rows_of(bench.store))
    assert keys["small"] == keys[""] == 8
    assert 1 <= keys["greedy"] < 8
    results = bench.results + other.results
    assert results == {Result.WRITTEN: keys.total(), Result.KEY_FULL: 8 - keys["greedy"]}
    bench.now += DAY
    bench.writer.take(captured(key="greedy"))
    bench.pass_s(FLUSH_S)
    assert bench.results[Result.WRITTEN] + other.results[Result.WRITTEN] == keys.total() + 1


def test_files_are_deleted_after_their_days(bench: Bench) -> None:
    """Also those of a pair that is gone, by another gateway's writer."""
    for pair, days in ((PAIR, 10), ("gone", 5)):
        bench.configure(pair, retention_days=days)
        bench.writer.take(captured(pair=pair))
    bench.writer.close()
    other = Bench(Path(bench.store._root))
    for age, left in ((4, {"gone", "serving.acme"}), (5, {"serving.acme"}), (9, {"serving.acme"}), (10, set())):
        other.now = bench.now + age * DAY
        other.pass_s(3600)
        assert {file.pair for file in other.store.files()} == left


def test_a_pair_may_be_called_audit(bench: Bench) -> None:
    """Its files are listed, forgotten and deleted as those of every pair."""
    bench.configure("audit", retention_days=5)
    bench.writer.take(captured(pair="audit"))
    bench.store.note("export", user="root")
    bench.writer.close()
    assert [file.pair for file in bench.store.files()] == ["audit"]
    assert forget(bench.store, None, key="team-a", before=None).answers == 1
    assert bench.store.files() == []


def test_a_shorter_retention_holds_for_files_that_exist(bench: Bench) -> None:
    bench.configure(retention_days=30)
    bench.writer.take(captured())
    bench.writer.close()
    bench.now += 8 * DAY
    bench.configure(retention_days=7)
    bench.pass_s(0)
    assert bench.store.files() == []


@pytest.mark.integration
def test_a_full_disk_drops_and_counts_answers(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
    try:
        bench = Bench(disk)
        bench.configure()
        for _ in range(12):
            bench.writer.take(captured(prompt="x" * 1000))
            bench.pass_s(FLUSH_S)
        assert bench.results[Result.WRITTEN] > 0
        assert bench.results[Result.STORE_FULL] > 0
        assert bench.results.total() == 12
        assert len(rows_of(bench.store)) == bench.results[Result.WRITTEN]  # no file is cut off
        assert [path for path in disk.rglob(".*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_store_that_is_gone_drops_and_counts_answers(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "captures")
    (tmp_path / "captures").write_text("a file in its place")
    bench.configure()
    bench.writer.take(captured())
    bench.pass_s(FLUSH_S)
    (tmp_path / "captures").unlink()
    bench.writer.take(captured())
    bench.pass_s(FLUSH_S)
    assert bench.results == {Result.STORE_FAILED: 1, Result.WRITTEN: 1}


def test_frames_arrive_whole_in_whatever_pieces() -> None:
    frames = [Configured(pair=PAIR, capture=Capture(share=0.5)), captured(), captured("Other")]
    data = b"".join(part for frame in frames for part in encode_frame(frame))
    reader = FrameReader()
    assert [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])] == frames


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("gs://bucket", "a store of captured answers is a folder or s3://BUCKET/PREFIX, got 'gs://bucket'"),
        ("", "a store of captured answers is a folder or s3://BUCKET/PREFIX, got ''"),
        (__file__, f"{__file__} is not a folder"),
        ("s3://", NO_BUCKET),
        ("s3://id:secret@bucket", NO_BUCKET),
        ("s3://b/p?zone=x", "s3://b/p?zone=x: unknown parameter zone (known: endpoint_override, region, scheme)"),
    ],
)
def test_a_wrong_location_is_one_clear_error(location: str, message: str) -> None:
    with pytest.raises(CommandError) as caught:
        check_location(location)
    assert str(caught.value) == message
