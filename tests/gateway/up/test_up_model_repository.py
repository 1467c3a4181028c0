"""The Triton model repository that `slipstream up` writes, read back with Triton's own configuration schema."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from google.protobuf import text_format
from slipstream_core.errors import CommandError
from slipstream_core.manifest import Draft, ModelPair, Target, parse
from slipstream_core.manifest.triton_model import engine_parameters, render_config, template_model
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.vllm_environment import VllmInstall
from tritonclient.grpc import model_config_pb2

from tests.support.manifests import pair_yaml

APPLICATION = "application"
OWN = "slipstream_engine.openai.hosted:application"
VLLM = "slipstream_engine.vllm_engine.hosted:application"


def _pair(
    name: str, target: str = "embedded:target", kind: str = "ngram", more: str = "", engine: str = ""
) -> ModelPair:
    fields = (f"target: {{source: '{target}'}}", f"draft: {{kind: {kind}}}", "maxDraftTokens: 5")
    engine = engine or f"{{kind: slipstream, maxConcurrency: 3, dtype: bfloat16{more}}}"
    [pair] = parse(pair_yaml(engine, *fields, name=name, model=f"client-{name}"), name="test.yaml")
    assert isinstance(pair, ModelPair)
    return pair


def _config(folder: Path) -> model_config_pb2.ModelConfig:
    text = (folder / "config.pbtxt").read_text(encoding="utf-8")
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def _parameters(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _tensors(tensors: Iterable[Any]) -> list[tuple[str, int, list[int]]]:
    return [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in tensors]


def test_template_is_a_decoupled_model_of_the_python_backend() -> None:
    config = _config(template_model())
    assert config.backend == "python"
    assert config.max_batch_size == 0
    assert config.model_transaction_policy.decoupled
    assert _tensors(config.input) == [("request", model_config_pb2.TYPE_UINT8, [-1])]
    assert _tensors(config.output) == [("response", model_config_pb2.TYPE_UINT8, [-1])]


def test_the_documentation_names_the_tensors_and_the_applications() -> None:
    config = _config(template_model())
    page = (Path(__file__).parents[3] / "docs" / "triton-models.md").read_text(encoding="utf-8")
    for name in (*(tensor.name for tensor in (*config.input, *config.output)), APPLICATION, OWN, VLLM):
        assert f"`{name}`" in page
    assert _parameters(config)[APPLICATION] == OWN


def test_vllm_gets_its_command_line_and_an_environment_of_its_own(tmp_path: Path) -> None:
    pair = _pair("v", engine="{kind: vllm, serving: triton}")
    with pytest.raises(CommandError, match=r"ModelPair/v: spec\.engine: vLLM is not installed here"):
        write_repository([pair], manifest_folder=tmp_path, folder=tmp_path / "models")
    install = VllmInstall(
        python=Path(sys.executable), version="0", site_packages=tmp_path / "site", libiomp=None, plugin="0"
    )
    repository = write_repository(
        [pair, _pair("own")],
        manifest_folder=tmp_path,
        folder=tmp_path / "models",
        vllm=install,
        vllm_arguments=["--seed", "a b"],
    )
    parameters = _parameters(_config(repository / "v"))
    assert parameters[APPLICATION] == VLLM
    arguments = shlex.split(parameters["vllm_args"])
    assert arguments[-2:] == ["--seed", "a b"]
    assert arguments[arguments.index("--scheduler-cls") + 1] == "slipstream_vllm.Scheduler"
    assert json.loads(arguments[arguments.index("--speculative-config") + 1])["num_speculative_tokens"] == 5
    environment = Path(parameters["EXECUTION_ENV_PATH"])
    assert (environment / "bin" / "activate").is_file()
    assert (environment / "bin" / "python3").exists()
    assert list(environment.glob("lib/python3.*/site-packages/numpy/__init__.py"))
    own = _parameters(_config(repository / "own"))
    assert own[APPLICATION] == OWN
    assert "EXECUTION_ENV_PATH" not in own


def test_parameters_come_from_the_pair_alone(tmp_path: Path) -> None:
    repository = write_repository([_pair("one")], manifest_folder=tmp_path, folder=tmp_path / "models")
    config = _config(repository / "one")
    assert config.name == "one"
    assert (repository / "one" / "1" / "model.py").is_file()
    assert _parameters(config) == {
        "application": OWN,
        "target": "embedded:target",
        "draft_kind": "ngram",
        "max_draft_tokens": "5",
        "max_slots": "3",
        "device": "auto",
        "dtype": "bfloat16",
        "threads": "1",
    }


def test_odd_folder_names_survive(tmp_path: Path) -> None:
    source = tmp_path / 'a "quoted" back\\slash, ünïcode'
    source.mkdir()
    (source / "config.json").write_text("{}")
    pair = _pair("odd", target=f"./{source.name}", more=", contextTokens: 64")
    repository = write_repository([pair], manifest_folder=tmp_path, folder=tmp_path / "models")
    parameters = _parameters(_config(repository / "odd"))
    assert parameters["target"] == str(source)
    assert parameters["context_tokens"] == "64"


def test_tokenizers_of_their_own_are_passed_on(tmp_path: Path) -> None:
    for name, file in (("target", "config.json"), ("words", "tokenizer.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    pair = _pair("own", target="target")
    spec = msgspec.structs.replace(
        pair.spec,
        target=Target(source="target", tokenizer="words"),
        draft=Draft(kind="model", source="embedded:draft", tokenizer="./words"),
    )
    pair = msgspec.structs.replace(pair, spec=spec)
    repository = write_repository([pair], manifest_folder=tmp_path, folder=tmp_path / "models")
    parameters = _parameters(_config(repository / "own"))
    assert parameters["target"] == str(tmp_path / "target")
    assert parameters["tokenizer"] == parameters["draft_tokenizer"] == str(tmp_path / "words")
    assert parameters["draft"] == "embedded:draft"
    (tmp_path / "words" / "tokenizer.json").unlink()
    message = f"ModelPair/own: spec.target.tokenizer: there is no tokenizer.json in {tmp_path / 'words'}"
    with pytest.raises(CommandError, match=message):
        write_repository([pair], manifest_folder=tmp_path, folder=tmp_path / "others")
    assert not (tmp_path / "others").exists()


def test_rendering_needs_no_files() -> None:
    """A cluster's volume is mounted where the servers run, not where their configuration is written."""
    parameters = engine_parameters(_pair("far", target="llama", kind="ngram"), PurePosixPath("/models"))
    assert parameters["target"] == "/models/llama"
    parameters["on_draft_mismatch"] = "plain"
    template = (template_model() / "config.pbtxt").read_text()
    config = text_format.Parse(render_config(template, "far", parameters), model_config_pb2.ModelConfig())
    assert config.name == "far"
    assert _parameters(config) == parameters


def test_several_pairs_are_several_models(tmp_path: Path) -> None:
    pairs = [_pair("one"), _pair("two", more=", tritonModel: other")]
    repository = write_repository(pairs, manifest_folder=tmp_path, folder=tmp_path / "models")
    assert sorted(path.name for path in repository.iterdir()) == ["one", "other"]
    assert _config(repository / "other").name == "other"


def test_two_pairs_cannot_be_one_triton_model(tmp_path: Path) -> None:
    pairs = [_pair("one"), _pair("two", more=", tritonModel: one")]
    with pytest.raises(CommandError, match="ModelPair/two: another pair already has the Triton model 'one'"):
        write_repository(pairs, manifest_folder=tmp_path, folder=tmp_path / "models")


@pytest.mark.parametrize(("create", "message"), [(False, "there is no folder"), (True, "there is no config.json in")])
def test_missing_checkpoint_is_named(tmp_path: Path, create: bool, message: str) -> None:
    if create:
        (tmp_path / "target").mkdir()
    with pytest.raises(CommandError, match=f"ModelPair/one: spec.target.source: {message} {tmp_path / 'target'}"):
        write_repository([_pair("one", target="target")], manifest_folder=tmp_path, folder=tmp_path / "models")
