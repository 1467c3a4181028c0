"""The compiled table: backends per arm, what they can do, hashes, and the examples that are shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import (
    EMBEDDED_MANIFEST,
    PairStatus,
    Route,
    WireProtocol,
    compile_table,
    load_file,
    parse,
    resolve_source,
    with_endpoints,
)
from slipstream_core.types import RESPONSES_FEATURE
from slipstream_gateway.decide.route.case import has_fixed_draft_length

EXAMPLES = sorted((Path(__file__).parents[3] / "deploy" / "examples").glob("*.yaml"))
ENGINE_PAIR = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: acme}
spec:
  model: acme-chat
  target: {source: ./target}
  draft: {kind: DRAFT}
  engine: {kind: slipstream, ENGINE}
"""
OF_OWN_ENGINE = {
    *("n", "prompt", "echo", "logprobs", "top_logprobs", "return_token_ids", "messages.name"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_p"),
    *("min_tokens", "ignore_eos", "stop_token_ids", "response_format", "structured_outputs"),
}


def engine_route(*, draft: str = "ngram", engine: str = "", endpoints: tuple[str, ...] = ("grpc://x:1",)) -> Route:
    objects = parse(ENGINE_PAIR.replace("DRAFT", draft).replace("ENGINE", engine))
    return compile_table(objects, local_endpoints=endpoints).routes["acme-chat"]


def example(name: str) -> Route:
    [route] = load_file(EMBEDDED_MANIFEST.parents[3] / "deploy" / "examples" / name).routes.values()
    return route


@pytest.mark.parametrize("path", [EMBEDDED_MANIFEST, *EXAMPLES], ids=lambda path: path.name)
def test_every_example_manifest_compiles(path: Path) -> None:
    table = load_file(path)
    assert table.folder == path.parent
    for model, route in table.routes.items():
        assert route.model == model
        assert route.policy is not None
        assert route.speculative is not None


def test_slipstreams_engine_serves_both_arms_from_the_same_servers() -> None:
    route = engine_route()
    assert route.speculative is not None
    assert route.plain.endpoints == route.speculative.endpoints == ("grpc://x:1",)
    assert route.plain.model == route.speculative.model == "acme"
    assert route.plain.protocol is WireProtocol.TRITON


def test_endpoints_and_model_of_the_manifest_go_before_the_local_ones() -> None:
    route = engine_route(engine='endpoints: ["grpc://far:2"], tritonModel: big')
    assert route.plain.endpoints == ("grpc://far:2",)
    assert route.plain.model == "big"


def vllm_route(engine: str = 'endpoints: ["http://v:1"]', *, draft: str = "ngram") -> Route:
    text = ENGINE_PAIR.replace("kind: slipstream, ENGINE", f"kind: vllm, {engine}").replace("DRAFT", draft)
    return compile_table(parse(text)).routes["acme-chat"]


def test_one_pool_of_vllm_serves_both_arms_with_a_draft_length_per_request() -> None:
    route = vllm_route('endpoints: ["http://v:1", "http://v:2"], model: llama, apiKeyEnv: KEY')
    assert route.speculative == route.plain
    assert route.plain.protocol is WireProtocol.OPENAI
    assert route.plain.drafts_per_request
    assert (route.plain.model, route.plain.api_key_env, route.plain.pool) == ("llama", "KEY", "acme")
    assert route.plain.endpoints == ("http://v:1", "http://v:2")
    assert not has_fixed_draft_length(route)
    assert route.fallback is None
    assert vllm_route().plain.model == "acme-chat"


@pytest.mark.parametrize(
    ("engine", "endpoints"),
    [("", ("http://127.0.0.1:8000",)), ("serving: triton", ("grpc://127.0.0.1:8001",))],
)
def test_vllm_without_addresses_is_found_where_its_servers_listen(engine: str, endpoints: tuple[str, ...]) -> None:
    assert vllm_route(engine).plain.endpoints == endpoints


def test_what_a_speculating_vllm_refuses_goes_to_plain_servers_where_there_are_any() -> None:
    features = frozenset({"min_p", "tools", "logprobs", "n"})
    refused = vllm_route()
    assert refused.plain.capabilities.missing(features) == ("min_p",)
    assert refused.plain_for(features) is refused.plain
    route = vllm_route('endpoints: ["http://v:1"], plain: {endpoints: ["http://p:1"], model: other, apiKeyEnv: K}')
    assert route.fallback is not None
    assert route.plain_for(features) is route.fallback
    assert route.plain_for(frozenset({"tools"})) is route.plain
    assert (route.fallback.model, route.fallback.pool, route.fallback.api_key_env) == ("other", "acme/fallback", "K")
    assert not route.fallback.drafts_per_request


def test_a_vllm_without_a_draft_refuses_nothing_and_is_no_speculative_arm() -> None:
    route = vllm_route(draft="none")
    assert route.speculative is None
    assert route.plain.capabilities.missing(frozenset({"min_p"})) == ()
    limited = vllm_route('endpoints: ["http://v:1"], unsupported: [tools]', draft="none")
    assert limited.plain.capabilities.missing(frozenset({"tools"})) == ("tools",)


def test_servers_of_both_arms_are_one_pool_and_others_two() -> None:
    same = engine_route()
    assert same.speculative is not None
    assert (same.plain.pool, same.speculative.pool) == ("acme", "acme")
    other = example("external-vllm.yaml")
    assert other.speculative is not None
    assert (other.plain.pool, other.speculative.pool) == ("llama-8b/plain", "llama-8b/speculative")
    together = with_endpoints(other, ("http://x:1",))
    assert together.speculative is not None
    assert together.plain.pool == together.speculative.pool == "llama-8b"
    assert together.plain.endpoints == together.speculative.endpoints == ("http://x:1",)
    assert engine_route(draft="none").plain.pool == "acme"


def test_an_arm_has_its_own_price_or_the_pairs() -> None:
    text = """
apiVersion: slipstream.dev/v1alpha1
kind: ModelPair
metadata: {name: outside}
spec:
  model: outside
  pricePerGpuHour: 2.5
  engine:
    kind: external
    arms:
      plain: {protocol: openai, endpoints: ["http://127.0.0.1:1"], model: m}
      speculative: {protocol: openai, endpoints: ["http://127.0.0.1:2"], model: m, pricePerGpuHour: 0}
"""
    route = compile_table(parse(text)).routes["outside"]
    assert route.speculative is not None
    assert (route.plain.price_per_gpu_hour, route.speculative.price_per_gpu_hour) == (2.5, 0)
    assert engine_route().plain.price_per_gpu_hour is None


def test_a_pair_without_a_draft_has_no_speculative_arm() -> None:
    assert engine_route(draft="none").speculative is None


def test_each_arm_of_an_external_engine_has_its_own_protocol() -> None:
    route = example("mixed.yaml")
    assert route.speculative is not None
    assert (route.speculative.protocol, route.plain.protocol) == (WireProtocol.TRITON, WireProtocol.OPENAI)
    assert route.plain.endpoints == ("http://127.0.0.1:8002", "http://127.0.0.1:8003")


@pytest.mark.parametrize(
    ("name", "arm", "honoured", "missing"),
    [
        ("own-pair.yaml", "plain", OF_OWN_ENGINE, {"tools", "best_of", "a_parameter_of_tomorrow"}),
        ("own-pair.yaml", "speculative", OF_OWN_ENGINE, {"tools", "best_of", "prompt_logprobs", RESPONSES_FEATURE}),
        ("external-vllm.yaml", "plain", {"n", "logprobs", "logit_bias", "min_p", "tools"}, set()),
        (
            "external-vllm.yaml",
            "speculative",
            {"tools", "response_format", "presence_penalty"},
            {"n", "logprobs", "logit_bias", "min_p", "min_tokens", "use_beam_search"},
        ),
        ("mixed.yaml", "plain", {"n", "logprobs"}, {"best_of"}),
    ],
)
def test_capabilities_say_what_an_arm_cannot_honour(name: str, arm: str, honoured: set[str], missing: set[str]) -> None:
    backend = getattr(example(name), arm)
    assert backend.capabilities.missing(honoured | missing) == tuple(sorted(missing))


def test_the_generation_changes_exactly_with_the_spec() -> None:
    text = EMBEDDED_MANIFEST.read_text()
    first, again = compile_table(parse(text)), compile_table(parse(f"# a comment\n{text}"))
    other = compile_table(parse(text.replace("allowClientMode: true", "allowClientMode: false")))
    assert first.generation == again.generation
    assert first.generation != other.generation


def test_the_table_cannot_be_changed() -> None:
    table = load_file(EMBEDDED_MANIFEST)
    with pytest.raises(TypeError):
        table.routes["x"] = table.routes["slipstream-embedded"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        table.generation = "x"  # type: ignore[misc]


def test_status_is_by_pair_and_ready_without_one() -> None:
    objects = parse(EMBEDDED_MANIFEST.read_bytes())
    waiting = PairStatus(ready=False, message="loading")
    assert compile_table(objects).routes["slipstream-embedded"].status.ready
    assert compile_table(objects, status={"embedded": waiting}).routes["slipstream-embedded"].status == waiting


def test_relative_sources_start_at_the_manifests_folder(tmp_path: Path) -> None:
    assert resolve_source("./target", tmp_path) == str(tmp_path / "target")
    assert resolve_source("/models/target", tmp_path) == "/models/target"
    assert resolve_source("embedded:draft", tmp_path) == "embedded:draft"


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ManifestError, match=r"cannot be read: (No such file|Is a directory)"):
        load_file(tmp_path / name)
