"""Manifests: what is accepted, and what a person reads when one is not."""

from __future__ import annotations

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import EMBEDDED_MANIFEST, ModelPair, SpeculationPolicy, parse, parse_documents

PAIR = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: acme}
spec:
  model: acme-chat
  target: {source: ./target}
  draft: {kind: model, source: ./draft}
  maxDraftTokens: 5
  engine: {kind: slipstream, endpoints: ["grpc://127.0.0.1:8001"]}
"""
POLICY = """
apiVersion: slipstream.dev/v1alpha1
kind: SpeculationPolicy
metadata: {name: acme}
spec:
  pair: acme
  classes: [{name: code, mode: plain}]
"""
EXTERNAL = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: outside}
spec:
  model: outside
  engine:
    kind: external
    arms:
      plain: {protocol: openai, endpoints: ["http://127.0.0.1:8002"], model: m}
"""


def manifest(*documents: str) -> str:
    return "\n---\n".join(documents)


def problems(text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as raised:
        parse(text, name="pair.yaml")
    assert str(raised.value) == "\n".join(raised.value.problems)
    return raised.value.problems


def changed(document: str, path: str, value: object) -> str:
    """`document` with the field at the dotted `path` set to `value`."""
    data = yaml.safe_load(document)
    *parents, last = path.split(".")
    node = data
    for key in parents:
        node = node[key]
    node[last] = value
    return yaml.safe_dump(data)


def test_the_packaged_manifest_serves_the_embedded_pair() -> None:
    pair, policy = parse(EMBEDDED_MANIFEST.read_bytes())
    assert isinstance(pair, ModelPair)
    assert isinstance(policy, SpeculationPolicy)
    assert pair.spec.model == "slipstream-embedded"
    assert policy.spec.pair == pair.metadata.name


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.maxDraftTokens", 0, "spec.maxDraftTokens: must be between 1 and 32, got 0"),
        ("spec.maxDraftTokens", True, "spec.maxDraftTokens: must be a whole number, got true"),
        ("spec.maxDraftTokens", 4.5, "spec.maxDraftTokens: must be a whole number, got 4.5"),
        ("spec.maxDraftTokens", 10**400, "spec.maxDraftTokens: must be between 1 and 32, got 1000"),
        ("spec.requestBounds", {"maxChoices": 0}, "spec.requestBounds.maxChoices: must be between 1 and 1024, got 0"),
        (
            "spec.requestBounds",
            {"maxStops": 4},
            "spec.requestBounds.maxStops: unknown field; did you mean maxStopBytes?",
        ),
        ("spec.pricePerGpuHour", float("nan"), "spec.pricePerGpuHour: must be a number that is finite, got nan"),
        ("spec.model", 5, "spec.model: must be a string (put it in quotes), got 5"),
        ("spec.model", "", "spec.model: must not be empty, got ''"),
        ("spec.model", "a\x07", "spec.model: must not have control characters or lone surrogates, got 'a\\x07'"),
        ("spec.modle", "x", "spec.modle: unknown field; did you mean model?"),
        ("spec.target", {}, "spec.target.source: is required"),
        ("spec.target", "x", "spec.target: must be a mapping, got 'x'"),
        ("spec.target.source", "embedded:tiny", "spec.target.source: must be a folder or one of embedded:target"),
        ("spec.draft", {"kind": "model"}, "spec.draft.source: is required for draft kind model"),
        ("spec.draft", {"kind": "ngram", "source": "x"}, "spec.draft.source: has no effect with draft kind ngram"),
        (
            "spec.draft.kind",
            "medusa",
            "spec.draft.kind: must be eagle, eagle3, hybrid,",
        ),
        ("spec.engine.kind", "tgi", "spec.engine.kind: must be slipstream, vllm or external, got 'tgi'"),
        (
            "spec.engine.endpoints",
            ["http://a:1"],
            "spec.engine.endpoints[0]: must be grpc://host:port or grpcs://host:port, got",
        ),
        (
            "spec.engine.endpoints",
            ["grpc://a"],
            "spec.engine.endpoints[0]: must be grpc://host:port or grpcs://host:port with a port",
        ),
        (
            "spec.engine.endpoints",
            ["grpc://a:x"],
            "spec.engine.endpoints[0]: must be grpc://host:port or grpcs://host:port (",
        ),
        ("spec.engine.endpoints", ["grpc://a:1", "grpc://a:1"], "spec.engine.endpoints[1]: is listed twice"),
        ("spec.engine.endpoints", "grpc://a:1", "spec.engine.endpoints: must be a list, got 'grpc://a:1'"),
        ("spec.engine.tritonModel", "../x", "spec.engine.tritonModel: must match"),
        ("spec.killSwitch", "on", "spec.killSwitch: must be true or false, got 'on'"),
        ("metadata.name", "Acme Corp", "metadata.name: must match"),
        ("apiVersion", "v1", "apiVersion: must be slipstream.dev/v1alpha1, got 'v1'"),
    ],
)
def test_an_error_names_document_object_field_and_value(path: str, value: object, expected: str) -> None:
    [line] = problems(changed(PAIR, path, value))
    assert line.startswith("pair.yaml: ModelPair/")
    assert expected in line


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ({"endpoints": []}, "arms.plain.endpoints: must have at least 1 item(s), got 0"),
        ({"endpoints": ["grpc://a:1"]}, "arms.plain.endpoints[0]: must be http://host:port or https://host:port"),
        ({"endpoints": ["http://u:secret@a:1"]}, "arms.plain.endpoints[0]: must not hold credentials"),
        ({"protocol": "grpc"}, "arms.plain.protocol: must be openai or triton, got 'grpc'"),
        ({"dialect": "tgi"}, "arms.plain.dialect: must be openai, sglang, trtllm or llamacpp, got 'tgi'"),
        (
            {"protocol": "triton", "endpoints": ["grpc://a:1"], "dialect": "sglang"},
            "arms.plain.dialect: has no effect with protocol triton, leave it out, got 'sglang'",
        ),
        ({"apiKeyEnv": "A B"}, "arms.plain.apiKeyEnv: must match"),
        ({"pricePerGpuHour": -1}, "arms.plain.pricePerGpuHour: must be between 0"),
        (
            {"protocol": "triton", "endpoints": ["grpc://a:1"], "apiKeyEnv": "KEY"},
            "arms.plain.apiKeyEnv: has no effect with protocol triton",
        ),
    ],
)
def test_an_external_arm_is_checked(arm: dict[str, object], expected: str) -> None:
    data = yaml.safe_load(EXTERNAL)
    data["spec"]["engine"]["arms"]["plain"] |= arm
    [line] = problems(yaml.safe_dump(data))
    assert f"ModelPair/outside: spec.engine.{expected}" in line


def test_a_price_for_one_arm_alone_is_refused_because_nothing_would_be_compared() -> None:
    data = yaml.safe_load(EXTERNAL)
    arms = data["spec"]["engine"]["arms"]
    arms["speculative"] = {**arms["plain"], "endpoints": ["http://127.0.0.1:8003"], "pricePerGpuHour": 4}
    [line] = problems(yaml.safe_dump(data))
    assert "spec.engine.arms.plain.pricePerGpuHour: is required: the other arm has a price" in line
    data["spec"]["pricePerGpuHour"] = 2
    assert parse(yaml.safe_dump(data))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.decision", "hopeful", "spec.decision: must be cautious, expected or rules, got 'hopeful'"),
        ("spec.confidence", 0.5, "spec.confidence: must be above 0.5, got 0.5"),
        ("spec.confidence", 1, "spec.confidence: must be below 1, got 1"),
        ("spec.margin", 1.5, "spec.margin: must be between 0 and 1, got 1.5"),
        ("spec.holdBackShare", -0.1, "spec.holdBackShare: must be between 0 and 1, got -0.1"),
        ("spec.maxCostIncrease", 11, "spec.maxCostIncrease: must be between 0 and 10, got 11"),
        ("spec.success", {"p95Reduction": 1}, "spec.success.p95Reduction: must be below 1, got 1"),
        (
            "spec.success",
            {"p95": 0.1},
            "spec.success.p95: unknown field; known fields: p95Reduction, qualityLoss, costIncrease",
        ),
        ("spec.minOutputTokens", -1, "spec.minOutputTokens: must be between 0 and 1000000, got -1"),
    ],
)
def test_a_policys_numbers_are_checked(path: str, value: object, expected: str) -> None:
    [line] = problems(manifest(PAIR, changed(POLICY, path, value)))
    assert line.startswith("pair.yaml: SpeculationPolicy/acme: ")
    assert expected in line


@pytest.mark.parametrize("field", ["minOutputTokens", "maxRareTokenShare", "maxCostIncrease"])
def test_a_threshold_may_be_left_to_the_break_even(field: str) -> None:
    _, policy = parse(manifest(PAIR, changed(POLICY, f"spec.{field}", None)))
    assert isinstance(policy, SpeculationPolicy)


def test_everything_may_be_held_back() -> None:
    _, policy = parse(manifest(PAIR, changed(POLICY, "spec.holdBackShare", 1)))
    assert isinstance(policy, SpeculationPolicy)
    assert policy.spec.hold_back_share == 1


@pytest.mark.parametrize(
    "address",
    [
        "http://host\\x:80",
        "http://\u3002:80",
        "http://.:80",
        "http://a..b:80",
        "http://-a:80",
        f"http://{'a' * 64}:80",
        "http://1.2.3:80",
        "http://300.1.1.1:80",
        "http://[::1:80",
        "http://[::x]:80",
        "http://[::1]x:80",
        "http://[fe80::1%25eth0]:80",
        "http://:80",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://a:\u0663",
        "http://a:80/\\",
        "http://a:80/%zz",
        "http://a:80/?",
        "http://a b:80",
        "HTTP://a:80",
        "http:a:80",
    ],
)
def test_an_address_that_no_client_could_use_is_refused(address: str) -> None:
    [line] = problems(changed(EXTERNAL, "spec.engine.arms.plain.endpoints", [address]))
    assert "ModelPair/outside: spec.engine.arms.plain.endpoints[0]: must be http://host:port" in line


@pytest.mark.parametrize(
    "address", ["http://a", "https://a.b-c.d_e.:443/v1/", "http://10.0.0.1:80", "http://[::1]:80", "http://3a:1/%20~x"]
)
def test_a_good_address_is_taken(address: str) -> None:
    assert parse(changed(EXTERNAL, "spec.engine.arms.plain.endpoints", [address]))


@pytest.mark.parametrize("number", ["0x" + "f" * 6000, "0b" + "1" * 60000, "1" + ":59" * 4000, "9" * 6000])
@pytest.mark.parametrize("field", ["maxDraftTokens: 5", "name: acme", "source: ./target"])
def test_an_endless_number_is_one_clear_error(number: str, field: str) -> None:
    [line] = problems(PAIR.replace(field, f"{field.partition(': ')[0]}: {number}"))
    assert "a number has more than 1000 characters" in line
    assert len(line) < 200


def test_an_endless_number_in_a_resource_is_one_clear_error() -> None:
    value = yaml.safe_load(PAIR)
    value["spec"]["maxDraftTokens"] = 16**6000
    value["spec"][16**6000] = [16**6000]
    with pytest.raises(ManifestError) as raised:
        parse_documents([value], name="acme")
    assert "spec.maxDraftTokens: must be between 1 and 32, got a number too long to show" in str(raised.value)


def test_an_external_engine_takes_no_target() -> None:
    [line] = problems(changed(EXTERNAL, "spec.target", {"source": "x"}))
    assert "spec.target: has no effect with engine kind external" in line


def test_a_password_in_an_address_is_not_repeated_in_the_error() -> None:
    text = changed(EXTERNAL, "spec.engine.arms.plain.endpoints", ["http://user:hunter2@host:1"])
    assert not any("hunter2" in line for line in problems(text))


def test_two_pairs_of_one_local_triton_need_two_models_there() -> None:
    local = changed(PAIR, "spec.engine", {"kind": "slipstream"})
    other = changed(local.replace("name: acme", "name: b"), "spec.engine.tritonModel", "acme")
    [line] = problems(manifest(local, other.replace("acme-chat", "other")))
    assert "ModelPair/b: spec.engine.tritonModel: ModelPair/acme already has the Triton model 'acme'" in line
    assert len(parse(manifest(PAIR, other.replace("acme-chat", "other")))) == 2


def test_all_problems_of_a_file_are_reported_at_once() -> None:
    broken = changed(changed(PAIR, "spec.maxDraftTokens", 99), "spec.engine.device", "tpu")
    lines = problems(manifest(broken, changed(POLICY, "spec.minConfidence", 2), "\nkind: Pod\n", "\n- 1\n"))
    assert [line.split(": ")[1] for line in lines] == [
        "ModelPair/acme",
        "ModelPair/acme",
        "SpeculationPolicy/acme",
        "document 3",
        "document 4",
    ]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ((PAIR, PAIR.replace("acme-chat", "other")), "metadata.name: another ModelPair has the name 'acme'"),
        ((PAIR, PAIR.replace("name: acme", "name: b")), "ModelPair/b: spec.model: another ModelPair serves the model"),
        (
            (PAIR, POLICY.replace("pair: acme", "pair: amce")),
            "spec.pair: no ModelPair is named 'amce' (known: acme)",
        ),
        ((PAIR, POLICY, POLICY.replace("{name: acme}", "{name: b}")), "spec.pair: another SpeculationPolicy is for"),
        ((POLICY,), "spec.pair: no ModelPair is named 'acme' (known: none)"),
        (
            (PAIR, POLICY.replace("mode: plain", "draftTokens: 6")),
            "spec.classes[0].draftTokens: must be at most maxDraftTokens of ModelPair/acme (5), got 6",
        ),
        (
            (PAIR, POLICY.replace("mode: plain}", "mode: auto}, {name: code}")),
            "classes[1].name: another rule already has",
        ),
        ((PAIR, POLICY.replace("name: code", "name: coding")), "spec.classes[0].name: must match"),
    ],
)
def test_objects_that_do_not_fit_together_are_refused(documents: tuple[str, ...], expected: str) -> None:
    assert any(expected in line for line in problems(manifest(*documents)))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "pair.yaml: empty"),
        (b"# nothing\n---\n", "pair.yaml: empty"),
        (b"a: 1\nb: [\n", "line 3, column 1: not valid YAML"),
        (b"a: 1\na: 2\n", "duplicate key 'a'"),
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (b"a: \x00", "not valid YAML"),
        (b"a: &x [1]\nb: *x\n", "line 2: aliases (*x) are not allowed"),
        (b"a: !!python/object:os.system x", "line 1: tags (tag:yaml.org,2002:python/object:os.system) are not"),
        (b"a: !!int x", "tags (tag:yaml.org,2002:int) are not allowed"),
        (b"[" * 5000, "nested deeper than 32 levels"),
        (b"a: 0x_\n", "not valid YAML"),
        (b"---\na\n" * 300, "more than 256 documents"),
        (b"a: " + b"x" * 1024 * 1024, "larger than 1048576 bytes"),
        (b"? [a]\n: b\n", "not valid YAML"),
        (b"5: x\n", "kind: must be ModelPair or SpeculationPolicy, got nothing"),
    ],
)
def test_text_that_is_no_manifest_is_refused(data: bytes, expected: str) -> None:
    assert any(expected in line for line in problems(data))


def test_a_name_that_looks_like_a_date_stays_what_was_written() -> None:
    [pair] = parse(PAIR.replace("acme-chat", "2026-11-20"))
    assert isinstance(pair, ModelPair)
    assert pair.spec.model == "2026-11-20"


@settings(deadline=None)
@given(
    name=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
    model=st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=40),
    tokens=st.integers(1, 32),
    price=st.none() | st.floats(0, 1000),
    kill=st.none() | st.booleans(),
    share=st.floats(0, 1),
    mode=st.sampled_from(["auto", "speculative", "plain"]),
)
def test_objects_survive_a_round_trip_through_yaml(
    name: str, model: str, tokens: int, price: float | None, kill: bool | None, share: float, mode: str
) -> None:
    pair, policy = yaml.safe_load(PAIR), yaml.safe_load(POLICY)
    pair["metadata"]["name"] = policy["spec"]["pair"] = name
    pair["spec"] |= {"model": model, "maxDraftTokens": tokens, "pricePerGpuHour": price, "killSwitch": kill}
    policy["spec"] |= {"maxRareTokenShare": share, "classes": [{"name": "code/long", "mode": mode}]}
    first = parse(yaml.safe_dump_all([pair, policy], allow_unicode=True))
    second = parse(yaml.safe_dump_all(msgspec.to_builtins(first), allow_unicode=True))
    assert second == first


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["model", "ngram", "triton", "embedded:target", "grpc://a:1", "http://[", "code/long"])
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def paths(value: object, prefix: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, item in items for path in paths(item, (*prefix, key)))]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_mutation_parses_or_raises_a_manifest_error(data: st.DataObject) -> None:
    documents = [yaml.safe_load(text) for text in (PAIR, POLICY, EXTERNAL)]
    place = data.draw(st.sampled_from(paths(documents)[1:]))
    node: object = documents
    for key in place[:-1]:
        node = node[key]  # type: ignore[index]
    if isinstance(node, dict) and data.draw(st.booleans()):
        del node[place[-1]]
    else:
        node[place[-1]] = data.draw(_VALUES)  # type: ignore[index]
    text = yaml.safe_dump_all(documents, allow_unicode=True)
    lines: tuple[str, ...] = ()
    try:
        parse(text, name="m.yaml")
    except ManifestError as error:
        lines = error.problems
    assert all(line.startswith("m.yaml: ") for line in lines)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_parse_or_raise_a_manifest_error(data: bytes) -> None:
    with pytest.raises(ManifestError):
        parse(data, name="m.yaml")
