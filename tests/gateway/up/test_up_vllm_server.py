"""How vLLM is started for a pair, and what its log says when it does not start. Real servers: tests/vllm, tests/e2e."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from slipstream_core.errors import CommandError
from slipstream_core.manifest import ModelPair, load_file, parse
from slipstream_core.vllm_log import informative_line
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.options import EXAMPLES, UpOptions, check_argument
from slipstream_tools.up.servers import local_pairs, with_ports
from slipstream_tools.up.vllm_pairs import launch_of, vllm_pairs

from tests.support.manifests import pair_yaml

ENGINE_LOG = """\
(APIServer pid=1) WARNING 11-22 20:17:49 [system_utils.py:255] fd limit errors like `OSError: [Errno 24] Too many`
(EngineCore pid=2) ERROR 11-22 20:41:09 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-22 20:41:09 [core.py:1100]     raise ValueError(
(EngineCore pid=2) ERROR 11-22 20:41:09 [core.py:1100] ValueError: No available memory for the cache blocks.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
CONFIGURATION_LOG = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (9) is greater than the derived one. [type=value_error]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
ARGUMENT_LOG = """\
usage: api_server.py [-h] [--headless]
api_server.py: error: unrecognized arguments: --nonsense
"""


def _pair(draft: str, target: str = "embedded:target", engine: str = "{kind: vllm}") -> ModelPair:
    fields = (f"target: {{source: {target}}}", f"draft: {draft}", "maxDraftTokens: 5")
    [pair] = parse(pair_yaml(engine, *fields, name="mine", model="mine"), name="test.yaml")
    assert isinstance(pair, ModelPair)
    return pair


def _options(arguments: list[str]) -> dict[str, str]:
    """Options with a value, by name."""
    return {name: value for name, value in itertools.pairwise(arguments) if name.startswith("--")}


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ("{kind: none}", None),
        (
            "{kind: ngram}",
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
        ),
        (
            "{kind: model, source: 'embedded:draft'}",
            {"method": "draft_model", "num_speculative_tokens": 5, "model": str(DRAFT_DIR)},
        ),
        (
            "{kind: model, source: 'embedded:smollm2-eagle'}",
            {"method": "eagle", "num_speculative_tokens": 5, "model": str(DRAFT_DIR.with_name("smollm2-eagle"))},
        ),
    ],
)
def test_draft_of_the_pair_is_vllm_s_speculative_config(
    tmp_path: Path, draft: str, expected: dict[str, object] | None
) -> None:
    options = _options(launch_of(_pair(draft), manifest_folder=tmp_path).arguments())
    found = options.get("--speculative-config")
    assert (found and json.loads(found)) == expected
    assert options["--model"] == str(TARGET_DIR)
    assert options["--served-model-name"] == "mine"
    assert options["--scheduler-cls"] == "slipstream_vllm.Scheduler"


def test_users_arguments_come_last_where_they_win(tmp_path: Path) -> None:
    launch = launch_of(_pair("{kind: none}"), manifest_folder=tmp_path, extra=["--dtype=bfloat16"])
    assert launch.arguments()[-1] == "--dtype=bfloat16"


def test_name_of_the_engine_goes_before_the_clients_name(tmp_path: Path) -> None:
    pair = _pair("{kind: none}", engine="{kind: vllm, model: theirs}")
    assert _options(launch_of(pair, manifest_folder=tmp_path).arguments())["--served-model-name"] == "theirs"


def test_adapters_of_the_pair_are_loaded_from_their_folders(tmp_path: Path) -> None:
    pair = _pair("{kind: none}", engine="{kind: vllm, adapters: [{name: sql, source: ./sql}]}")
    with pytest.raises(CommandError, match=rf"spec\.engine\.adapters\[0\]\.source: there is no folder {tmp_path}/sql"):
        launch_of(pair, manifest_folder=tmp_path)
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "adapter_config.json").touch()
    arguments = launch_of(pair, manifest_folder=tmp_path).arguments()
    at = arguments.index("--lora-modules")
    assert json.loads(arguments[at + 1]) == {"name": "mine:sql", "path": f"{tmp_path}/sql"}
    assert "--enable-lora" in arguments


def test_missing_folder_and_a_source_for_clusters_are_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"ModelPair/mine: spec.target.source: there is no folder {tmp_path}/target"):
        launch_of(_pair("{kind: none}", target="./target"), manifest_folder=tmp_path)
    with pytest.raises(
        CommandError, match=r"spec\.target\.source: hf://acme/chat@v1 is for a cluster; here, download it"
    ):
        launch_of(_pair("{kind: none}", target="hf://acme/chat@v1"), manifest_folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("embedded", "triton"), ("embedded-vllm", "vllm"), ("smollm2", "triton"), ("smollm2-vllm", "vllm")],
)
def test_manifests_of_the_package_need_one_kind_of_server(name: str, engine: str) -> None:
    table = load_file(EXAMPLES / f"{name}.yaml")
    assert len(local_pairs(table)) == (engine == "triton")
    assert len(vllm_pairs(table)) == (engine == "vllm")
    [route] = table.routes.values()
    assert route.policy is not None


@pytest.mark.integration
def test_ports_that_are_given_stay_and_the_others_are_chosen() -> None:
    options = with_ports(UpOptions(http_port=12345), load_file(EXAMPLES / "embedded.yaml"))
    assert options.http_port == 12345
    assert options.grpc_port is not None
    assert options.metrics_port is not None
    assert len({options.http_port, options.grpc_port, options.metrics_port}) == 3
    assert with_ports(UpOptions(), load_file(EXAMPLES / "embedded-vllm.yaml")).grpc_port is None


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (ENGINE_LOG, "ValueError: No available memory for the cache blocks."),
        (CONFIGURATION_LOG, "User-specified max_model_len (9) is greater than the derived one."),
        (ARGUMENT_LOG, "unrecognized arguments: --nonsense"),
        ("Killed by somebody\n", "Killed by somebody"),
        ("", ""),
    ],
)
def test_most_telling_line_of_a_log_is_found(log: str, line: str) -> None:
    assert informative_line(log) == line


@pytest.mark.parametrize("text", ["--max-model-len=512", "--model-impl=vllm", "--hf-overrides", "512", "-O3", "-q"])
def test_other_arguments_of_vllm_pass(text: str) -> None:
    assert check_argument(text) == text
