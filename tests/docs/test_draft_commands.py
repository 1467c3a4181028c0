"""From captured answers to a draft that serves, as docs/howto/drafts.md tells it: real Triton, real training."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable

import httpx
import pytest
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.embedded.corpus import example

from tests.docs.shell import Shell
from tests.support.doc_blocks import Block, runs
from tests.support.polling import eventually

ADDRESS = "http://127.0.0.1:8080"
ANSWERS = 60
POLICY = """
---
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {name: support}
spec: {pair: support, allowClientMode: true, capture: {share: 1, redact: []}}
"""


def ask(url: str, number: int) -> dict[str, object]:
    drawn = example(80_001, number, "train", {"status": 1.0})
    body = {"model": "support-8b", "messages": drawn.chat(), "max_tokens": 48, "temperature": 0}
    answer = httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"x-slipstream-mode": "speculative"}, timeout=60
    )
    answer.raise_for_status()
    usage: dict[str, object] = answer.json()["usage"]["slipstream"]
    return usage


def told(evidence: str) -> list[dict[str, object]]:
    """What the engine knows of its drafts; nothing until the gateway has asked it again."""
    [pair] = json.loads(evidence)["data"]
    rows: list[dict[str, object]] = pair["drafts"]
    return rows if len({row["draft"] for row in rows}) == 3 else []


@runs(
    "docs/howto/drafts.md",
    "slipstream up",
    "slipstream drafts stats",
    "slipstream drafts train --store captures --pair support --target models/target --draft",
    "slipstream drafts check",
    "apiVersion: slipstream.dev",
    "slipstream drafts train --store captures --pair support --target models/target --method",
    "slipstream drafts follow",
    "spec:",
    "curl -s http://127.0.0.1:8080/v1/evidence",
)
@pytest.mark.slow  # a training
def test_captured_answers_become_a_draft_that_serves(
    blocks: list[Block], shell: Shell, free_ports: Callable[[int], list[int]]
) -> None:
    shell.environment["OMP_NUM_THREADS"] = "1"  # the draft is too small for a second thread
    up, stats, train, check, manifest, recipe, follow, candidates, evidence = blocks
    (shell.folder / "models").mkdir()
    (shell.folder / "models" / "target").symlink_to(TARGET_DIR)
    (shell.folder / "models" / "draft").symlink_to(DRAFT_DIR)
    several = manifest.text + POLICY
    one = several.replace(", alternatives: [./models/tuned]", "")
    assert one != several
    support = shell.folder / "support.yaml"
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = {"--capture-store": f"--port {port} --capture-store"}

    support.write_text(one, encoding="utf-8")
    with shell.serving(up, options, url=url):
        assert {ask(url, number)["draft"] for number in range(ANSWERS)} == {None}
    table = shell.run(stats)
    counts = [int(line.split()[1]) for line in table.splitlines()[1:]]
    assert sum(counts) == ANSWERS
    shell.run(train)
    assert "ok       shapes" in shell.run(check)

    assert shell.run(follow, {"drafts follow": "drafts follow --once"}) == ""  # nothing has become worse
    shutil.copytree(shell.folder / "models" / "tuned", shell.folder / "trained" / "status")
    record = json.loads((shell.folder / "trained" / "status" / "training.json").read_text(encoding="utf-8"))
    names = {"draft", "tuned", f"status-{record['sha256'][:8]}"}
    [line] = [line for line in candidates.text.splitlines() if "draft:" in line]
    alone = "draft: {kind: model, source: ./models/draft"
    assert line.strip() == f"{alone}, candidates: ./trained}}"
    support.write_text(several.replace(alone, f"{alone}, candidates: ./trained"), encoding="utf-8")
    with shell.serving(up, options, url=url):
        taken = (ask(url, number)["draft"] for number in itertools.count())
        seen: set[object] = set()
        eventually(lambda: seen.add(next(taken)) or seen == names, "answers with each draft", within_s=60)
        metrics = httpx.get(f"{url}/metrics", timeout=30).text
        known = eventually(lambda: told(shell.run(evidence, {ADDRESS: url})), "what is known of the drafts")
    assert {row["draft"] for row in known} == names
    assert {row["state"] for row in known} <= {"promoted", "undecided", "taken_back"}
    for name in names:
        assert re.search(rf'^slipstream_draft_engine_seconds_total{{.*draft="{name}".*}} \S+$', metrics, re.MULTILINE)

    script = shell.run(recipe)
    assert "speculators train --verifier-name-or-path models/target --speculator-type eagle3" in script
    rows = (shell.folder / "eagle3" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) >= ANSWERS
    assert set(json.loads(rows[0])) == {"input_ids", "loss_mask"}
