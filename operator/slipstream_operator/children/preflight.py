"""The container that compares a draft's tokenizer with its target's before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.sources import located

from slipstream_operator.children.repository import sources_folder
from slipstream_operator.children.resources import environment, preflight_resources
from slipstream_operator.children.security import container_security

PREFLIGHT_CONTAINER = "preflight"

REPORT = "/dev/termination-log"
"""The file that becomes the message of a container that has ended."""


def has_draft_model(pair: ModelPair) -> bool:
    """Whether there are two tokenizers to compare: layers of the target itself have its own, and so have heads on its
    hidden states in vLLM."""
    draft = pair.spec.draft
    if draft is None or draft.source is None:
        return False
    return draft.kind == "model" if isinstance(pair.spec.engine, VllmEngine) else draft.has_model


def preflight_container(pair: ModelPair, *, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The preflight container. Its report is in the pod's status. It fails, and the pod with it, if a checkpoint cannot
    be read, and for vLLM if the tokenizers differ: vLLM would draft in vain, and cannot serve the target alone."""
    container: dict[str, Any] = {
        "name": PREFLIGHT_CONTAINER,
        "image": image,
        "command": [*_program(pair), *_options(pair), f"--report={REPORT}"],
        "env": environment(gpu=False),
        "securityContext": container_security(),
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    if resources := preflight_resources(pair):
        container["resources"] = resources
    return container


def _program(pair: ModelPair) -> list[str]:
    if isinstance(pair.spec.engine, VllmEngine):
        return ["python3", "-m", "slipstream_vllm.preflight"]
    return ["python", "-m", "slipstream_engine.preflight"]


def _options(pair: ModelPair) -> Iterator[str]:
    folder = sources_folder(pair)
    for name, part in (("target", pair.spec.target), ("draft", pair.spec.draft)):
        if part is not None and part.source is not None:
            yield f"--{name}={_verbatim(located(part.source, folder))}"
        if part is not None and part.tokenizer is not None:
            yield f"--{name}-tokenizer={_verbatim(located(part.tokenizer, folder))}"
    for source in pair.spec.draft.alternatives if pair.spec.draft is not None else ():
        yield f"--alternative={_verbatim(located(source, folder))}"


def _verbatim(argument: str) -> str:
    """`argument`, escaped: Kubernetes expands $(NAME) in commands."""
    return argument.replace("$", "$$")
