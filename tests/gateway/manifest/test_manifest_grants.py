"""A pair that names a key needs a grant for its namespace and for each of its hosts; else it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import parse_resource, resolve
from slipstream_core.manifest.grants import read_grants
from slipstream_core.settings import Grants, KeyGrant, NameGrant

from tests.gateway.manifest.objects import JSON, resource

HOSTS = ("vllm.team-a.svc", ".models.svc", "10.0.0.7")
GRANTS = Grants(api_keys={"TEAM_A_KEY": KeyGrant(namespaces=("team-a",), hosts=HOSTS)})


def pair(engine: JSON, *, namespace: str = "team-a", name: str = "acme", created: str = "") -> JSON:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": created}
    return resource("ModelPair", {"model": "acme", "engine": engine}, **metadata)


def external(*endpoints: str, key: str | None = "TEAM_A_KEY") -> JSON:
    arm = {"protocol": "openai", "model": "m", "endpoints": list(endpoints)}
    return {"kind": "external", "arms": {"plain": arm | ({"apiKeyEnv": key} if key else {})}}


def problems(item: JSON, grants: Grants = GRANTS) -> str:
    resolution = resolve([parse_resource(item)], grants)
    found = "; ".join(str(problem) for several in resolution.problems.values() for problem in several)
    assert bool(resolution.pairs) == (not found), "a pair with a problem is not served"
    return found


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://vllm.team-a.svc:8000",
        "https://VLLM.team-a.svc/v1",
        "http://a.models.svc",
        "http://a.b.models.svc:1",
        "http://10.0.0.7",
    ],
)
def test_key_is_granted_to_the_namespace_and_the_host(endpoint: str) -> None:
    assert problems(pair(external(endpoint))) == ""


@pytest.mark.parametrize(
    "host",
    [
        "vllm.team-b.svc",
        "x.vllm.team-a.svc",
        "vllm.team-a.svc.",
        "vllm.team-a.svc.evil.example",
        "models.svc",
        "evilmodels.svc",
        "10.0.0.70",
        "vllm",
    ],
)
def test_key_is_refused_to_another_host(host: str) -> None:
    text = problems(pair(external("http://a.models.svc", f"http://{host}:8000")))
    assert text.startswith("spec.engine.arms.plain.apiKeyEnv: 'TEAM_A_KEY' is not granted to 'http://")
    assert host in text


def test_key_is_refused_to_another_namespace_and_without_any_grant() -> None:
    engine = external("http://vllm.team-a.svc:8000")
    refusal = "spec.engine.arms.plain.apiKeyEnv: 'TEAM_A_KEY' is not granted to namespace "
    assert problems(pair(engine, namespace="team-b")).startswith(f"{refusal}team-b")
    assert problems(pair(engine), Grants()).startswith(f"{refusal}team-a")
    assert problems(pair(external("http://anything", key=None), namespace="team-b")) == ""


def test_star_grants_a_key_to_every_namespace() -> None:
    grants = Grants(api_keys={"TEAM_A_KEY": KeyGrant(namespaces=("*",), hosts=HOSTS)})
    assert problems(pair(external("http://vllm.team-a.svc"), namespace="team-z"), grants) == ""


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        ({"apiKeyEnv": "OTHER"}, "spec.engine.apiKeyEnv"),
        ({"plain": {"endpoints": ["http://b:1"], "apiKeyEnv": "TEAM_A_KEY"}}, "spec.engine.plain.apiKeyEnv"),
    ],
)
def test_every_place_that_names_a_key_is_looked_at(engine: JSON, field: str) -> None:
    vllm = {"kind": "vllm", "endpoints": ["http://vllm.team-a.svc:8000"], **engine}
    assert problems(pair(vllm)).startswith(f"{field}: ")


def test_refused_pair_keeps_no_model_name_from_a_younger_one() -> None:
    older = parse_resource(pair(external("http://evil"), name="older", created="2026-01-01T00:00:00Z"))
    younger = parse_resource(pair(external("http://a", key=None), name="younger", created="2026-02-01T00:00:00Z"))
    assert list(resolve([older, younger], GRANTS).pairs) == ["team-a/younger"]


NAMES = Grants(
    model_names=(
        NameGrant(prefix="acme", namespaces=("team-a",)),
        NameGrant(prefix="acme-free", namespaces=("*",)),
        NameGrant(prefix="acme-b", namespaces=("team-b",)),
        NameGrant(prefix="acme-b", namespaces=("team-c",)),
    )
)


def named(model: str, namespace: str, *, created: str = "", **spec: Any) -> JSON:
    item = pair(external("http://a", key=None), namespace=namespace, created=created)
    return {**item, "spec": {**item["spec"], "model": model, **spec}}


@pytest.mark.parametrize(
    ("model", "namespaces"),
    [
        ("acme", {"team-a"}),
        ("acme-8b", {"team-a"}),
        ("acme-b", {"team-b", "team-c"}),
        ("acme-b2", {"team-b", "team-c"}),
        ("acme-free-1", {"team-a", "team-b", "team-c"}),
        ("other", {"team-a", "team-b", "team-c"}),
        ("ACME", {"team-a", "team-b", "team-c"}),
    ],
)
def test_longest_prefix_says_whose_a_model_name_is(model: str, namespaces: set[str]) -> None:
    allowed = {name for name in ("team-a", "team-b", "team-c") if not problems(named(model, name), NAMES)}
    assert allowed == namespaces
    if "team-b" not in namespaces:
        assert problems(named(model, "team-b"), NAMES).startswith(f"spec.model: '{model}' is not granted to namespace")


def test_older_pair_of_another_namespace_never_gets_a_granted_name() -> None:
    thief = parse_resource(named("acme", "team-b", created="2026-01-01T00:00:00Z"))
    owner = parse_resource(named("acme", "team-a", created="2026-03-01T00:00:00Z"))
    assert list(resolve([thief, owner], NAMES).pairs) == ["team-a/acme"]
    assert list(resolve([thief], NAMES).pairs) == []  # while the owner is being re-created
    assert list(resolve([thief, owner]).pairs) == ["team-b/acme"]


def test_kill_switch_of_a_pair_that_may_not_have_the_name_kills_nothing_of_others() -> None:
    thief = parse_resource(named("acme", "team-b", killSwitch=True))
    owner = parse_resource(named("acme", "team-a"))
    assert set(resolve([thief, owner], NAMES).kills) == {"team-b/acme"}
    assert set(resolve([owner, thief]).kills) == {"team-a/acme", "team-b/acme"}


def test_grants_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "grants.yaml"
    path.write_text("apiKeys:\n  TEAM_A_KEY: {namespaces: [team-a], hosts: [vllm.team-a.svc, .models.svc, 10.0.0.7]}\n")
    assert read_grants(path) == GRANTS
    path.write_text("modelNames: [{prefix: acme, namespaces: [team-a]}]")
    assert read_grants(path) == Grants(model_names=NAMES.model_names[:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("apiKey: {}", "unknown field `apiKey`"),
        ("apiKeys: {K: {namespaces: [a]}}", "missing required field `hosts`"),
        ("apiKeys: {SLIPSTREAM_REDIS_URL: {namespaces: [a], hosts: [b]}}", "apiKeys.SLIPSTREAM_REDIS_URL"),
        ("{", "grants.yaml"),
    ],
)
def test_grants_that_cannot_be_used_end_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "grants.yaml"
    path.write_text(text)
    with pytest.raises(CommandError, match=r"--grants .*grants\.yaml") as caught:
        read_grants(path)
    assert message in str(caught.value)


def test_a_key_for_servers_that_the_operator_runs_needs_a_grant_for_their_service() -> None:
    """An author of pods in that namespace can read the key."""
    item = pair({"kind": "vllm", "apiKeyEnv": "TEAM_A_KEY"})
    item["spec"] |= {"target": {"source": "t"}, "draft": {"kind": "none"}}
    assert "'TEAM_A_KEY' is not granted to 'http://slipstream-acme.team-a.svc'" in problems(item)
    own = KeyGrant(namespaces=("team-a",), hosts=("slipstream-acme.team-a.svc",))
    assert problems(item, Grants(api_keys={"TEAM_A_KEY": own})) == ""
