"""Answers of a real gateway are captured: by class, consent and key, without effect on clients. Triton is real."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_engine.embedded import TARGET_DIR
from slipstream_engine.text.tokenizer import Tokenizer
from slipstream_gateway.capture.store import CaptureStore

from tests.gateway.capture.captures import rows_of
from tests.gateway.serving.test_triton_serving import SUMMARY
from tests.support.command import arguments_of
from tests.support.gateway_process import Process
from tests.support.polling import PATIENCE_S, eventually
from tests.support.ports import lasting_ports
from tests.support.s3_store import S3Store

pytestmark = pytest.mark.integration

MODEL = "slipstream-embedded"
NAME = "Mara Osterova"


class Served:
    """A gateway with a store for captured answers."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def ask(self, text: str = SUMMARY, *, consent: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if consent is None else {"x-slipstream-capture": consent}
        message = {"role": "user", "content": text}
        fields = {"model": MODEL, "messages": [message], "temperature": 0, "max_tokens": 32, **body}
        url = f"{self.process.url}/v1/chat/completions"
        answer = httpx.post(url, json=fields, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200 or consent == "maybe", answer.text
        return answer

    def writer(self) -> psutil.Process | None:
        children = psutil.Process(self.process.child.pid).children(recursive=True)
        return next((child for child in children if "slipstream_gateway.capture.writer" in arguments_of(child)), None)

    def counts(self) -> dict[str, float]:
        """The answers drawn for capture, by result."""
        text = httpx.get(f"{self.process.url}/metrics", timeout=PATIENCE_S).text
        lines = [line for line in text.splitlines() if line.startswith("slipstream_capture_answers_total{")]
        return {line.split('result="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def stop(self) -> None:
        """End it; its writer writes what it has."""
        self.process.child.send_signal(signal.SIGTERM)
        self.process.child.wait(PATIENCE_S)


@pytest.fixture
def serve(tmp_path: Path, triton_endpoint: str, exit_stack: ExitStack) -> Callable[..., Served]:
    def start(capture: str, location: str, *options: str) -> Served:
        text = EMBEDDED_MANIFEST.read_text()
        assert "kind: SpeculationPolicy" in text
        path = tmp_path / "manifest.yaml"
        head, spec, tail = text.rpartition("\nspec:")
        path.write_text(f"{head}{spec}\n  capture: {capture}{tail}")
        [port] = lasting_ports(1)
        process = Process(
            path, port, "--local-endpoint", f"grpc://{triton_endpoint}", "--capture-store", location, *options
        )
        served = Served(process)
        exit_stack.callback(served.stop)
        process.wait_live()
        eventually(served.writer, "the writer runs")
        return served

    return start


def test_answers_are_captured_with_their_tokens(serve: Callable[..., Served], tmp_path: Path) -> None:
    store = CaptureStore.at(str(tmp_path / "captures"))
    served = serve("{share: 1, words: [Ada Kowalska]}", str(tmp_path / "captures"))
    # Before its first probe a server is not known to return the tokens of prompts.
    eventually(lambda: served.ask(max_tokens=1).json()["system_fingerprint"], "the server has described itself")
    answer = served.ask().json()["choices"][0]["message"]["content"]
    served.ask(stream=True)
    served.ask(SUMMARY.replace(NAME, "Ada Kowalska"))
    served.stop()
    *_, whole, streamed, redacted = rows_of(store)
    assert whole["answer"] == streamed["answer"] == answer
    assert whole["token_ids"] == streamed["token_ids"]
    assert len(whole["token_ids"]) == whole["output_tokens"] == 32
    assert whole["prompt_token_ids"] == streamed["prompt_token_ids"]
    messages = [{"role": "user", "content": SUMMARY}]
    assert tuple(whole["prompt_token_ids"]) == Tokenizer.load(TARGET_DIR).render_chat(messages)
    assert whole["finish_reason"] == "length"
    assert whole["request_class"].startswith("summarization/")
    assert whole["target"].startswith("embedded:target")
    assert whole["fingerprint"]
    assert (redacted["token_ids"], redacted["prompt_token_ids"]) == (None, None)
    assert "my name is [word]." in redacted["request"]
    assert "Kowalska" not in str(redacted)
    mode = {path.stat().st_mode & 0o777 for path in (tmp_path / "captures").rglob("*.parquet")}
    assert mode == {0o600}


@pytest.mark.parametrize(
    ("capture", "consent", "kept"),
    [
        ("{share: 1}", None, True),
        ("{share: 1}", "deny", False),
        ("{share: 1, consent: required}", None, False),
        ("{share: 1, consent: required}", "allow", True),
        ("{share: 0}", "allow", False),
        ("{share: 0, classes: [{name: summarization, share: 1}]}", None, True),
        ("{share: 1, classes: [{name: summarization, share: 0}]}", None, False),
    ],
)
def test_shares_and_consent_decide(
    serve: Callable[..., Served], tmp_path: Path, capture: str, consent: str | None, kept: bool
) -> None:
    served = serve(capture, str(tmp_path / "captures"))
    served.ask(consent=consent)
    served.stop()
    assert len(rows_of(CaptureStore.at(str(tmp_path / "captures")))) == int(kept)


def test_another_word_of_consent_is_refused(serve: Callable[..., Served], tmp_path: Path) -> None:
    answer = serve("{share: 1}", str(tmp_path / "captures")).ask(consent="maybe")
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message == "Invalid header 'x-slipstream-capture': expected allow, deny, got \"maybe\"."


def test_a_killed_writer_is_started_again_and_no_request_notices(serve: Callable[..., Served], tmp_path: Path) -> None:
    served = serve("{share: 1}", str(tmp_path / "captures"))
    served.ask()
    first = served.writer()
    assert first is not None
    first.kill()
    eventually(lambda: served.counts().get("writer_gone", 0) >= 1, "the loss is counted")
    served.ask()
    eventually(lambda: (found := served.writer()) and found.pid != first.pid, "another writer runs")
    served.ask()
    counts = served.counts()
    served.stop()
    assert len(rows_of(CaptureStore.at(str(tmp_path / "captures")))) == 3 - counts["writer_gone"]


def test_a_stopped_writer_delays_no_request(serve: Callable[..., Served], tmp_path: Path) -> None:
    """As one with a store that hangs: what fits into the pipe waits, the rest is dropped and counted."""
    served = serve("{share: 1}", str(tmp_path / "captures"))
    writer = served.writer()
    assert writer is not None
    writer.suspend()
    try:
        body = SUMMARY + " " + "So it goes. " * 250_000  # some MB of request, which the classifier reads in part
        for _ in range(8):
            served.ask(body, max_tokens=1, messages=[{"role": "user", "content": "Hi"}], user=body)
    finally:
        writer.resume()
    eventually(lambda: served.counts().get("writer_busy", 0) > 0, "the loss is counted")


@pytest.mark.slow  # starts a server for the bucket; the others have folders
def test_answers_are_captured_in_a_bucket(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = S3Store()
    try:
        bucket.make_bucket("captures")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        location = f"s3://captures/drafts?scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{bucket.port}"
        served = serve("{share: 1}", location)
        served.ask()
        served.stop()
        [row] = rows_of(CaptureStore.at(location))
        assert len(row["token_ids"]) == 32
    finally:
        bucket.stop()


def test_a_wrong_store_ends_the_start() -> None:
    [port] = lasting_ports(1)
    process = Process(EMBEDDED_MANIFEST, port, "--capture-store", "gs://bucket")
    assert process.child.wait(PATIENCE_S) == 2
    assert process.child.stderr is not None
    assert (
        "a store of captured answers is a folder or s3://BUCKET/PREFIX, got 'gs://bucket'"
        in process.child.stderr.read()
    )
