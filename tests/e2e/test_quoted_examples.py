"""The examples that README.md, the tutorial and `slipstream up` show, on a fresh system: arm, reason, sign and size are
those of the text.

No request is drawn for a comparison: the policy is that of `slipstream up`, with shares of 0. The figures of the text
are those of another machine, which did nothing else. So a time may be shorter by a factor, and as long as the answer
here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST

from tests.docs.shell import Shell
from tests.e2e.conftest import RunningUp
from tests.e2e.pasted import run_pasted
from tests.support.command import SCRIPT
from tests.support.doc_blocks import Block, runs_in_order
from tests.support.polling import eventually

pytestmark = pytest.mark.timeout(240)

ADDRESS = "http://127.0.0.1:8080"
FACTOR = 8.0
FIRST_FIELD = "  allowClientMode: true\n"
NO_DRAWS = "  holdBackShare: 0\n  explorationShare: 0\n"
OWN_FIELDS = {"seed", "engine_seconds"}


class Examples(NamedTuple):
    """A fresh system, and the shell in which its examples run."""

    up: RunningUp
    shell: Shell

    def output(self, block: Block) -> str:
        """What the block prints here."""
        has_address = ADDRESS in self.shell.script(block)
        return self.shell.run(block, {ADDRESS: self.up.url} if has_address else {}).replace("\r", "")


@pytest.fixture
def examples(start_up: Callable[..., RunningUp], tmp_path: Path) -> Examples:
    """After the engine's check, which takes about as long as the reading of the first page."""
    text = EMBEDDED_MANIFEST.read_text()
    assert text.count(FIRST_FIELD) == 1
    (manifest := tmp_path / "pair.yaml").write_text(text.replace(FIRST_FIELD, FIRST_FIELD + NO_DRAWS))
    up = start_up("-f", str(manifest))
    eventually(lambda: is_checked(up.url), within_s=120)
    path = os.pathsep.join([str(Path(SCRIPT).parent), os.environ["PATH"]])
    return Examples(up, Shell(tmp_path, {**os.environ, "PATH": path}))


def is_checked(url: str) -> bool:
    pairs = httpx.get(f"{url}/v1/evidence", timeout=60).json()["data"]
    return all(check["findings"] for pair in pairs for check in pair["conformance"])


@runs_in_order(
    ("README.md", "curl -i"),
    ("README.md", "curl -si"),
    ("docs/tutorial/first-request.md", "cat > request.json"),
    ("docs/tutorial/first-request.md", "for mode in"),
    ("docs/tutorial/first-request.md", "curl -si"),
    ("docs/tutorial/first-request.md", "curl -s http://127.0.0.1:8080/v1/route"),
    ("docs/tutorial/first-request.md", "slipstream route"),
    ("docs/tutorial/first-request.md", "from openai import"),
)
def test_examples_show_what_the_text_says(blocks: list[Block], examples: Examples) -> None:
    status, summary, long, modes, label, asked, route, client = blocks
    check_status(status, examples)
    check_summary(summary, examples)
    check_printed(examples)
    check_lines(long, examples)
    check_modes(modes, examples)
    check_lines(label, examples)
    check_asked(asked, examples)
    check_route(route, examples)
    check_client(client, examples)


def check_status(block: Block, examples: Examples) -> None:
    """Headers and body are those of the text; figures of this run have the size of those shown."""
    shown_head, _, shown_body = block.output.partition("\n\n")
    begun_s = time.monotonic()
    printed_head, _, printed_body = examples.output(block).partition("\n\n")
    taken_s = time.monotonic() - begun_s
    headers = set(printed_head.splitlines())
    assert set(shown_head.splitlines()) <= headers
    assert not any(line.startswith("x-slipstream-saving-ms") for line in headers), "nothing was timed before"
    shown, printed = json.loads(shown_body), json.loads(printed_body)
    assert shown.keys() == printed.keys()
    assert shown["choices"] == printed["choices"]
    assert without_own(shown["usage"]) == without_own(printed["usage"])
    details = [body["usage"]["slipstream"] for body in (shown, printed)]
    assert details[0]["engine_seconds"] / FACTOR < details[1]["engine_seconds"] < taken_s
    assert abs(len(str(details[1]["seed"])) - len(str(details[0]["seed"]))) <= 4


def without_own(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage without the figures that are each run's own."""
    engine = {name: value for name, value in usage["slipstream"].items() if name not in OWN_FIELDS}
    return {**usage, "slipstream": engine}


def is_like(value: float, shown: float) -> bool:
    return shown / FACTOR < value < shown * FACTOR


def check_summary(block: Block, examples: Examples) -> None:
    shown, printed = (lines_of(text) for text in (block.output, examples.output(block)))
    saving_ms, steps = "x-slipstream-saving-ms", '"target_steps"'
    assert shown.keys() == printed.keys()
    assert {**shown, saving_ms: "", steps: ""} == {**printed, saving_ms: "", steps: ""}
    for found in (shown, printed):
        assert int(found[steps]) < int(found['"completion_tokens"']) / 2
    assert float(shown[saving_ms]) / FACTOR < float(printed[saving_ms])
    assert float(printed[saving_ms]) < 2.0 * 1e3 * plain_s(block, examples), "a saving is a part of the answer's time"


def lines_of(text: str) -> dict[str, str]:
    """Lines `name: value` and `"name":value`."""
    return dict(re.split(r": ?", line, maxsplit=1) for line in text.splitlines())


def plain_s(block: Block, examples: Examples) -> float:
    """The time of the block's request, decoded plainly."""
    [data] = re.findall(r"-d '(\{.*\})'", examples.shell.script(block), re.DOTALL)
    headers = {"x-slipstream-mode": "plain", "x-slipstream-learn": "off", "content-type": "application/json"}
    answer = httpx.post(f"{examples.up.url}/v1/chat/completions", content=data, headers=headers, timeout=120)
    assert answer.headers["x-slipstream-arm"] == "plain"
    return answer.elapsed.total_seconds()


def check_printed(examples: Examples) -> None:
    """The commands of `slipstream up`: their titles name a long answer, a label and an explanation."""
    summary, label, explain = examples.up.commands
    headers, body = run_pasted(summary)
    assert (headers["x-slipstream-arm"], headers["x-slipstream-reason"]) == ("speculative", "speculation_pays")
    assert float(headers["x-slipstream-saving-ms"]) > 0
    assert body.rstrip().endswith("data: [DONE]")
    headers, body = run_pasted(label)
    assert (headers["x-slipstream-arm"], headers["x-slipstream-reason"]) == ("plain", "break_even")
    assert float(headers["x-slipstream-saving-ms"]) <= 0
    assert json.loads(body)["choices"][0]["message"]["content"] == "delivery"
    explained = json.loads(run_pasted(explain)[1])
    expected = {"speculation_pays": "save", "speculation_may_pay": "may save", "break_even": "is required"}
    assert expected[explained["reason"]] in explained["detail"]
    margin_s = explained["numbers"]["margin_s"]
    assert (explained["saving_s"] > margin_s) is (explained["reason"] == "speculation_pays")


def check_lines(block: Block, examples: Examples) -> None:
    """Each line is as shown."""
    assert examples.output(block) == block.output


def check_modes(block: Block, examples: Examples) -> None:
    shown, printed = (times_of(text) for text in (block.output, examples.output(block)))
    ratios = [median(times["plain"]) / median(times["speculative"]) for times in (shown, printed)]
    assert min(ratios) > 1.0
    assert is_like(ratios[1], ratios[0])


def times_of(text: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for mode, seconds in re.findall(r"^(\w+) ([\d.]+) s$", text, re.MULTILINE):
        found.setdefault(mode, []).append(float(seconds))
    return found


def check_asked(block: Block, examples: Examples) -> None:
    """The sentence is the same but for its numbers. The saving is about the same part of the plain time."""
    texts = [block.output, examples.output(block)]
    number = r"\d+(?:\.\d+)?"
    assert re.sub(number, "N", texts[0]) == re.sub(number, "N", texts[1])
    shown, printed = ([float(found) for found in re.findall(number, text)] for text in texts)
    *_, saving_ms, plain_ms = printed
    assert 0 < saving_ms < plain_ms
    assert all(is_like(value, known) for value, known in zip(printed[:-2], shown, strict=False))
    assert is_like(saving_ms / plain_ms, shown[-2] / shown[-1])


def check_route(block: Block, examples: Examples) -> None:
    """No server is asked, so that every line is as shown."""
    printed = examples.output(block).splitlines()
    assert [line for line in block.output.splitlines() if line.strip() != "…" and line not in printed] == []


def check_client(block: Block, examples: Examples) -> None:
    """A reply, in the words of the request."""
    code = block.text.replace(ADDRESS, examples.up.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Dear Kira Quinack,")
    assert "687482" in done.stdout
