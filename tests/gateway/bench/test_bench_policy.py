"""The policy that a run speaks for, and the manifests that a bench serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slipstream_core.errors import CommandError, ManifestError
from slipstream_core.manifest import EMBEDDED_MANIFEST, ClassRule, ModelPair, SpeculationPolicy, parse
from slipstream_core.manifest.model_pair import Metadata
from slipstream_core.manifest.rollout import Thresholds as ClassThresholds
from slipstream_tools.bench.cases import Prices, cases_of
from slipstream_tools.bench.manifests import default_policy, dump, policy_route, read_manifest
from slipstream_tools.bench.policy import measured_policy
from slipstream_tools.bench.results import Row
from slipstream_tools.bench.summary import Thresholds
from slipstream_tools.cli import main

from tests.gateway.bench.rows import row
from tests.gateway.pair_manifest import manifest_text

MODES = ("plain", "speculative:2", "speculative:4")


def class_rows(start: int, request_class: str, times_s: tuple[float, float, float], **fields: Any) -> list[Row]:
    return [
        row(index, mode, e2e_s=seconds + index / 1e6, request_class=request_class, label="by name", **fields)
        for index in range(start, start + 40)
        for mode, seconds in zip(MODES, times_s, strict=True)
    ]


def test_rules_follow_the_verdicts_of_routings_own_classes(tmp_path: Path) -> None:
    rows = class_rows(0, "summarization/long", (1.0, 0.6, 0.4))
    rows += class_rows(40, "summarization/short", (1.0, 1.1, 1.2))
    rows += class_rows(80, "short_qa/short", (1.0, 1.1, 1.2))
    rows += class_rows(120, "unknown/long", (1.0, 0.6, 0.4))
    rows += class_rows(160, "code/long", (1.0, 0.6, 0.4))[:30]  # ten pairs: not enough
    policy = measured_policy(
        default_policy(Metadata(name="embedded")),
        cases_of(rows),
        MODES,
        thresholds=Thresholds(p95_reduction=0.3),
        prices=Prices(),
        seed=0,
    )
    rules = {rule.name: (rule.mode, rule.draft_tokens) for rule in policy.spec.classes}
    assert rules["summarization/long"] == ("speculative", 4)
    assert rules["summarization"] == ("plain", None)  # its slowest answers are those that get slower
    assert "summarization/short" not in rules  # the task's rule says the same
    assert rules["short_qa"] == ("plain", None)
    assert not any(name.startswith(("unknown", "code")) for name in rules)
    assert policy.spec.success.p95_reduction == 0.3

    path = tmp_path / "policy.yaml"
    path.write_bytes(dump([policy], whole=False))
    assert policy_route(path, EMBEDDED_MANIFEST, None).policy == policy


def test_a_class_speculates_only_if_it_should_at_every_load() -> None:
    rows = class_rows(0, "summarization/long", (1.0, 0.6, 0.4))
    rows += class_rows(0, "summarization/long", (1.0, 1.1, 1.2), concurrency=8)
    policy = measured_policy(
        default_policy(Metadata(name="p")), cases_of(rows), MODES, thresholds=Thresholds(), prices=Prices(), seed=0
    )
    assert [(rule.name, rule.mode) for rule in policy.spec.classes] == [("summarization", "plain")]


def test_rules_of_classes_without_a_verdict_stay() -> None:
    base = default_policy(Metadata(name="p"))
    names = ("summarization", "summarization/long", "code")
    rules = tuple(ClassRule(name=name, mode="speculative", draft_tokens=1) for name in names)
    base = msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, classes=rules))
    rows = class_rows(0, "summarization/long", (1.0, 1.1, 1.2)) + class_rows(40, "code/long", (1, 1, 1))[:30]
    policy = measured_policy(base, cases_of(rows), MODES, thresholds=Thresholds(), prices=Prices(), seed=0)
    found = {rule.name: (rule.mode, rule.draft_tokens) for rule in policy.spec.classes}
    assert found == {"summarization": ("plain", None), "code": ("speculative", 1)}


def test_the_written_policy_loads_beside_its_pair(
    two_arms: Callable[..., Any], bench_file: Callable[..., Path], tmp_path: Path
) -> None:
    body = {"model": "acme", "messages": [{"role": "user", "content": "tokens=3"}]}
    gateway, written = two_arms(), tmp_path / "measured.yaml"
    arguments = ["--url", gateway.url, "--requests", str(bench_file(body)), "--out", str(tmp_path / "out")]
    assert main(["bench", *arguments, "--write-policy", str(written), "--pair", "pair", "--modes", "plain"]) == 0
    pair_only = gateway.manifest.read_text().split("---")[0]
    [_, policy] = parse(f"{pair_only}---\n{written.read_text()}")
    assert isinstance(policy, SpeculationPolicy)
    assert policy.spec.pair == "pair"


def test_what_a_bench_serves_lets_clients_choose_and_keeps_the_rest(tmp_path: Path) -> None:
    checkpoint = tmp_path / "models" / "draft"
    text = EMBEDDED_MANIFEST.read_text()
    path = tmp_path / "pair.yaml"
    path.write_text(text.split("---")[0].replace('"embedded:draft"', "models/draft") + "  priceOfNothing: 1")
    with pytest.raises(ManifestError, match="priceOfNothing"):
        read_manifest(path, None)
    path.write_text(text.split("---")[0].replace('"embedded:draft"', "models/draft") + "  pricePerGpuHour: 2.5\n")
    manifest = read_manifest(path, None)
    assert manifest.prices == Prices(plain=2.5, speculative=2.5)
    pair, policy = parse(manifest.served(None))
    assert isinstance(pair, ModelPair)
    assert isinstance(policy, SpeculationPolicy)
    assert pair.spec.draft is not None
    assert pair.spec.draft.source == str(checkpoint.resolve())
    assert (policy.spec.pair, policy.spec.allow_client_mode, policy.spec.parity_share) == ("embedded", True, 0.0)


def test_what_a_bench_serves_has_no_limit_for_what_it_does_not_replay(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(
        EMBEDDED_MANIFEST.read_text().split("---")[0]
        + "---\napiVersion: slipstream.dev/v1alpha1\nkind: SpeculationPolicy\nmetadata: {name: embedded}\n"
        + "spec: {pair: embedded, thresholds: {parityLoss: 0.01, p95Seconds: 5},"
        + " classes: [{name: code, thresholds: {parityLoss: 0}}]}\n"
    )
    _, policy = parse(read_manifest(path, None).served(None))
    assert isinstance(policy, SpeculationPolicy)
    assert (policy.spec.thresholds.parity_loss, policy.spec.thresholds.p95_seconds) == (None, 5.0)


@pytest.mark.parametrize(
    ("draft", "kind", "source"),
    [
        ("ngram", "ngram", None),
        ("embedded:draft", "model", "embedded:draft"),
        ("/models/d", "model", "/models/d"),
        ("ngram+embedded:draft", "hybrid", "embedded:draft"),
        ("ngram+/models/d", "hybrid", "/models/d"),
    ],
)
def test_another_draft_takes_the_place_of_the_pairs_own(draft: str, kind: str, source: str | None) -> None:
    pair = parse(read_manifest(EMBEDDED_MANIFEST, None).served(draft))[0]
    assert isinstance(pair, ModelPair)
    assert pair.spec.draft is not None
    assert (pair.spec.draft.kind, pair.spec.draft.source) == (kind, source)


def test_an_engine_of_its_own_has_no_draft_to_replace(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(manifest_text(["http://127.0.0.1:1"]))
    with pytest.raises(CommandError, match="--drafts: ModelPair/pair has no draft to replace"):
        read_manifest(path, "acme").served("ngram")


def test_a_pair_of_a_cluster_keeps_its_namespace_revision_and_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    text = (
        EMBEDDED_MANIFEST.read_text().split("---")[0].replace("name: embedded", "name: embedded\n  namespace: prod", 1)
    )
    text = text.replace('source: "embedded:target"', 'source: "embedded:target", revision: v2, tokenizer: words')
    path.write_text(text)
    pair, policy = parse(read_manifest(path, None).served(None))
    assert isinstance(pair, ModelPair)
    assert isinstance(policy, SpeculationPolicy)
    assert (pair.metadata.key, policy.metadata.namespace) == ("prod/embedded", "prod")
    assert pair.spec.target is not None
    assert (pair.spec.target.revision, pair.spec.target.tokenizer) == ("v2", str((tmp_path / "words").resolve()))


def test_a_written_policy_has_no_null_and_keeps_the_thresholds_of_a_class() -> None:
    held = ClassRule(name="code", thresholds=ClassThresholds(acceptance_floor=0.6))
    base = default_policy(Metadata(name="p"))
    base = msgspec.structs.replace(base, spec=msgspec.structs.replace(base.spec, classes=(held,)))
    rows = class_rows(0, "code/long", (1.0, 0.6, 0.4))
    policy = measured_policy(base, cases_of(rows), MODES, thresholds=Thresholds(), prices=Prices(), seed=0)
    assert [(rule.mode, rule.thresholds) for rule in policy.spec.classes] == [("speculative", held.thresholds)]
    assert "null" not in dump([policy], whole=False).decode()
