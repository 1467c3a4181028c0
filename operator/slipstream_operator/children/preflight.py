"""The container that compares a draft's tokenizer with its target's before any weights are loaded."""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.triton_model import engine_parameters

from slipstream_operator.children.repository import sources_folder
from slipstream_operator.children.resources import environment, preflight_resources
from slipstream_operator.children.security import container_security

PREFLIGHT_CONTAINER = "preflight"

REPORT = "/dev/termination-log"
"""The file that becomes the message of a container that has ended."""
_OPTIONS = {
    "target": "--target",
    "tokenizer": "--target-tokenizer",
    "draft": "--draft",
    "draft_tokenizer": "--draft-tokenizer",
}


def has_draft_model(pair: ModelPair) -> bool:
    """Whether there are two tokenizers to compare: layers of the target itself have its own."""
    draft = pair.spec.draft
    return draft is not None and draft.has_model and draft.source is not None


def preflight_container(pair: ModelPair, *, image: str, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """The preflight container. It succeeds whether or not the tokenizers match, and its report is in the pod's status.
    It fails, and the pod with it, if a checkpoint cannot be read."""
    parameters = engine_parameters(pair, sources_folder(pair))
    options = [f"{option}={_verbatim(parameters[name])}" for name, option in _OPTIONS.items() if name in parameters]
    container: dict[str, Any] = {
        "name": PREFLIGHT_CONTAINER,
        "image": image,
        "command": ["python", "-m", "slipstream_engine.preflight", *options, f"--report={REPORT}"],
        "env": environment(gpu=False),
        "securityContext": container_security(),
        "terminationMessagePath": REPORT,
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    if resources := preflight_resources(pair):
        container["resources"] = resources
    return container


def _verbatim(argument: str) -> str:
    """`argument`, escaped: Kubernetes expands $(NAME) in commands."""
    return argument.replace("$", "$$")
