"""The resources of the containers of a server's pod."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from slipstream_core.manifest.engines import SlipstreamEngine, VllmEngine
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import EnvVar, Resources, Serving
from slipstream_core.manifest.sources import STORE

from slipstream_operator.children.repository import sources_of

GPU = "nvidia.com/gpu"
HUB_TOKEN = "HF_TOKEN"  # nosec B105 # the name of a variable
STORE_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_OF_NODES = ("cpu", "memory", "ephemeral-storage")
# If the image requests it, NVIDIA's container runtime gives all GPUs to a container that requests none.
_NO_GPU = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def server_resources(pair: ModelPair) -> dict[str, Any]:
    """The server's resources. GPUs are a limit, which is also the request. `resources` takes precedence over `gpus`."""
    serving = pair.spec.serving or Serving()
    gpus = gpus_of(pair)
    limits = {GPU: str(gpus)} if gpus else {}
    return _given(serving.resources.requests, limits | serving.resources.limits)


def preflight_resources(pair: ModelPair) -> dict[str, Any]:
    """The server's resources without its devices, so that the pod needs no more than its server."""
    asked = (pair.spec.serving or Serving()).resources
    return _given(*({key: held[key] for key in _OF_NODES if key in held} for held in (asked.requests, asked.limits)))


def gpus_of(pair: ModelPair) -> int:
    """The number of GPUs of each server; 0 for an engine that runs on CPUs."""
    engine = pair.spec.engine
    if isinstance(engine, SlipstreamEngine) and engine.device == "cpu":
        return 0
    if isinstance(engine, VllmEngine) and pair.spec.serving is None:
        return engine.tensor_parallel_size * engine.pipeline_parallel_size
    return (pair.spec.serving or Serving()).gpus


def server_environment(pair: ModelPair, defaults: Mapping[str, str] = MappingProxyType({})) -> list[dict[str, Any]]:
    """The environment of the server's container, with the pair's own variables. Credentials for downloads are only for
    the download."""
    serving = pair.spec.serving or Serving()
    has_store = any(source.startswith(STORE) for source in sources_of(pair))
    secret = (HUB_TOKEN, *(STORE_KEYS if has_store else ()))
    variables = [variable for variable in serving.env if variable.name not in secret]
    return [*environment(gpu=gpus_of(pair) > 0), *variables_of(variables, defaults)]


def variables_of(
    variables: Iterable[EnvVar], defaults: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The pair's own variables in the form of a container, and those of `defaults` that it leaves out."""
    own = [_variable(variable) for variable in variables]
    names = {variable["name"] for variable in own}
    return [*({"name": name, "value": value} for name, value in defaults.items() if name not in names), *own]


def environment(*, gpu: bool) -> list[dict[str, str]]:
    """The environment of a container. Its root is read-only, so PyTorch and compilers store their files in /tmp."""
    home = [{"name": "HOME", "value": "/tmp"}]  # nosec B108 # a volume of the pod's own
    return home if gpu else [*home, _NO_GPU]


def _variable(variable: EnvVar) -> dict[str, Any]:
    if variable.secret is None:
        return {"name": variable.name, "value": variable.value or ""}
    reference = {"name": variable.secret.name, "key": variable.secret.key}
    return {"name": variable.name, "valueFrom": {"secretKeyRef": reference}}


def _given(requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    asked = Resources(requests=requests, limits=limits)
    return {name: dict(held) for name, held in (("requests", asked.requests), ("limits", asked.limits)) if held}
