"""The examples for platforms that start vLLM themselves: what they give to vLLM and to the plugin is valid.

Their own fields were compared with the published definitions and the chart's template; no platform runs here.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from slipstream_core.manifest.vllm_command import SCHEDULER
from slipstream_vllm import __version__
from slipstream_vllm.classes import Traits, parse

FOLDER = Path(__file__).parents[3] / "deploy/examples/plugin"
IMAGE = f"slipstream-vllm:{__version__}"
FILE = "/etc/slipstream/classes.yaml"


def example(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def kserve() -> tuple[str, list[str], dict[str, Any], dict[str, Any]]:
    """The image, the arguments, the container and the object that has its volumes."""
    pod = example("kserve")["spec"]["template"]
    [container] = pod["containers"]
    [arguments] = [entry["value"] for entry in container["env"] if entry["name"] == "VLLM_ADDITIONAL_ARGS"]
    return container["image"], shlex.split(arguments), {**container, "mounts": container["volumeMounts"]}, pod


def production_stack() -> tuple[str, list[str], dict[str, Any], dict[str, Any]]:
    [model] = example("production-stack")["servingEngineSpec"]["modelSpec"]
    arguments = [part for argument in model["vllmConfig"]["extraArgs"] for part in argument.split("=", 1)]
    image = f"{model['repository']}:{model['tag']}"
    return image, arguments, {**model, "mounts": model["extraVolumeMounts"]}, {"volumes": model["extraVolumes"]}


@pytest.mark.parametrize("read", [kserve, production_stack])
def test_vllm_starts_with_the_plugin_and_the_file_of_classes(read: Any) -> None:
    image, arguments, container, owner = read()
    assert image == IMAGE
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--scheduler-cls"] == SCHEDULER
    assert json.loads(options["--speculative-config"])["num_speculative_tokens"] == 4
    assert {entry["name"]: entry["value"] for entry in container["env"]}["SLIPSTREAM_VLLM_CLASSES"] == FILE
    [mount], [volume] = container["mounts"], owner["volumes"]
    assert (mount["mountPath"], mount["name"]) == (str(Path(FILE).parent), volume["name"])
    assert volume["configMap"]["name"] == example("classes")["metadata"]["name"]


def test_the_file_of_classes_is_valid_for_that_server() -> None:
    classes = parse(example("classes")["data"][Path(FILE).name], 4)
    request = Traits(endpoint="chat", model="m", max_tokens=9, tools=False, response_format=True)
    assert classes.label(request) == "extraction"
    assert classes.label(request._replace(response_format=False)) is None


def test_each_route_sets_fields_that_the_plugin_knows() -> None:
    lengths, classes = [], parse(example("classes")["data"]["classes.yaml"], 4).lengths
    for rule in example("ai-gateway")["spec"]["rules"]:
        [field] = rule["backendRefs"][0]["bodyMutation"]["set"]
        assert field["path"] == "vllm_xargs"
        xargs = json.loads(field["value"])
        lengths.append(xargs.pop("slipstream_draft_length"))
        assert xargs.pop("slipstream_class", "unlabelled") in classes
        assert xargs == {}
    assert lengths == [4, 0]
