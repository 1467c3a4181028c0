"""Replay: other policies on recorded outcomes whose oracle is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.types import GenerationRequest, RequestProfile, TaskType
from slipstream_gateway.decide.estimate import Learner
from slipstream_tools.bench.cases import cases_of
from slipstream_tools.bench.manifests import policy_route
from slipstream_tools.bench.replay import Replay, Replayer
from slipstream_tools.bench.results import Row, read_results
from slipstream_tools.cli import main

from tests.gateway.bench.rows import results, row

LONG = "Summarise this call for the CRM.\n\nAgent: Hello.\nCustomer: My router number {} drops the line.\n" * 3
SHORT = "One-line status for order {}, please.\nOrder: lamp, status: in transit"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """200 requests: long summaries that take 1 s plain and 0.4 s speculative, short lines with 0.1 s and 0.15 s."""
    rows: list[Row] = []
    for index in range(200):
        long = index % 2 == 0
        text = (LONG if long else SHORT).replace("{}", str(1000 + index))
        request = {"model": "slipstream-embedded", "messages": [{"role": "user", "content": text}], "temperature": 0}
        shared: dict[str, Any] = {"request": request, "label": "long" if long else "short", "ttft_s": 0.05}
        shared["output_tokens"] = tokens = 200 if long else 12
        plain_s, speculative_s = (1.0, 0.4) if long else (0.1, 0.15)
        drafts = {"steps": tokens // 4, "drafted": tokens, "accepted": tokens * 3 // 4, "draft_length": 4}
        rows.append(row(index, "plain", e2e_s=plain_s, **shared))
        rejected = (tokens // 12, 0, 0, 0)
        rows.append(row(index, "speculative", e2e_s=speculative_s, rejected_at=rejected, **drafts, **shared))
    path = tmp_path / "results.jsonl"
    header = results(rows).header
    path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in [header, *rows]))
    return path


def policy(folder: Path, name: str = "policy", **spec: object) -> str:
    path = folder / f"{name}.yaml"
    value = {"apiVersion": "slipstream.dev/v1alpha1", "kind": "SpeculationPolicy", "metadata": {"name": "mine"}}
    path.write_text(json.dumps({**value, "spec": {"pair": "embedded", **spec}}))
    return str(path)


def replayed(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> dict[str, Any]:
    assert main(["replay", "--json", *arguments]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


class ByFirstWord:
    """A classifier that is right about these two kinds of requests."""

    def classify(self, request: GenerationRequest) -> RequestProfile:
        long = request.messages[0].content.startswith("Summarise")
        return RequestProfile(
            task=TaskType.SUMMARIZATION if long else TaskType.SHORT_QA,
            expected_output_tokens=200.0 if long else 12.0,
            rare_token_share=0.05,
            structured_output=False,
            prompt_tokens=40,
            confidence=0.9,
        )


def decided(recorded: Path, policy_file: str) -> Replay:
    route = policy_route(Path(policy_file), EMBEDDED_MANIFEST, None)
    replayer = Replayer(route, classifier=ByFirstWord(), learner=Learner(), seed=0)
    results = read_results(recorded)
    return replayer.run(cases_of(results.rows), results.header.settings.modes)


def test_a_policy_is_held_against_plain_speculative_and_the_oracle(recorded: Path, tmp_path: Path) -> None:
    found = decided(recorded, policy(tmp_path, decision="rules", holdBackShare=0))
    assert found.requests == 200
    assert {one.name: one.captured for one in found.totals} == {
        "always plain": 0.0,
        "always speculative": pytest.approx((100 * 0.6 - 100 * 0.05) / 60),
        "mine": pytest.approx(1.0),
        "per-request oracle": pytest.approx(1.0),
    }
    assert [one.mean_e2e_s for one in found.totals] == pytest.approx([0.55, 0.275, 0.25, 0.25])
    assert found.speculated == 100
    assert found.reasons == {"speculative: speculation_pays": 100, "plain: short_output": 100}
    assert found.worst_class is not None
    assert (found.worst_class.request_class, found.worst_class.slow_down.estimate) == ("short", 0.0)


def test_held_back_requests_run_plainly(recorded: Path, tmp_path: Path) -> None:
    found = decided(recorded, policy(tmp_path, decision="rules", holdBackShare=1))
    assert found.reasons == {"control: hold_back": 100, "plain: short_output": 100}
    assert found.speculated == 0
    assert found.captured_first == 0.0


def test_what_is_learnt_pays(recorded: Path, tmp_path: Path) -> None:
    """Only from the outcomes of its own choices, the policy comes to know that the long ones pay."""
    found = decided(recorded, policy(tmp_path, explorationShare=0.2, holdBackShare=0))
    assert found.captured_first is not None
    assert found.captured_first > 0.5


@pytest.mark.parametrize(
    ("spec", "reason"), [({"enabled": False}, "plain: policy_disabled"), ({"killSwitch": True}, "plain: kill_switch")]
)
def test_the_command_decides_with_the_shipped_classifier(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, object], reason: str
) -> None:
    found = replayed(capsys, [str(recorded), "--policy", policy(tmp_path, **spec)])
    assert found["reasons"] == {reason: 200}
    assert found["captured_first"] == 0.0


def test_the_same_seed_decides_the_same(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(recorded), "--policy", policy(tmp_path, explorationShare=0.3, holdBackShare=0.3)]
    assert replayed(capsys, arguments) == replayed(capsys, arguments)


def test_several_policies_stand_side_by_side_as_text(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = policy(tmp_path, enabled=False)
    assert main(["replay", str(recorded), "--policy", one, "--policy", one]) == 0
    out = capsys.readouterr().out
    assert out.count("policy mine: 200 recorded requests") == 2
    assert "worst class" in out
    assert "0 of 200 speculate" in out


def test_files_that_cannot_be_used_are_one_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = policy(tmp_path)
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"object": "something else"}\n')
    for arguments, message in (
        ([str(broken), "--policy", good], "line 1: not written by slipstream bench"),
        ([str(tmp_path / "none"), "--policy", good], "cannot be read"),
        ([str(recorded), "--policy", policy(tmp_path, "other", pair="other")], "no ModelPair is named"),
        ([str(recorded), "--policy", good, "--draft", "x"], "no drafts were compared in it"),
    ):
        assert main(["replay", *arguments]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert message in line
