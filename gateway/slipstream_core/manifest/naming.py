"""Names and labels of a pair's children in a cluster, set by the operator and used by other components."""

from __future__ import annotations

import hashlib

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
PART_OF_SLIPSTREAM = "slipstream"
OPERATOR = "slipstream-operator"
PAIR_LABEL = "slipstream.dev/pair"
REVISION_LABEL = "slipstream.dev/revision"
RELEASE_LABEL = "slipstream.dev/release"
GRPC_PORT_NAME = "grpc"
HTTP_PORT_NAME = "http"

CLASS_PATTERN = (
    r"^(summarization|extraction|code|translation|classification|short_qa|math_reasoning|creative_writing"
    r"|open_chat|rewriting)(/(short|medium|long))?$"
)
"""Names of request classes: a task, or task/length."""
CANARY_PREFIX = "canary-"
APPROVE = "slipstream.dev/approve-revision"
"""The annotation of a pair that approves a revision; its value is the revision."""
ALLOW_DELETE = "slipstream.dev/allow-delete"
"""The annotation of a pair in use that permits its deletion, where the API server refuses it; its value is `true`."""
_LONGEST = 63  # a DNS label, as Kubernetes requires of a Service's name
_LONGEST_GROUP = 40
_DIGEST_CHARS = 8


def child_name(pair: str) -> str:
    """The name of the children of `pair`: `slipstream-<pair>`, the same for every kind of child.

    A name that is too long for Kubernetes is cut and ends with a hash of the whole name, so that two pairs never share
    one.
    """
    name = f"slipstream-{pair}"
    return name if len(name) <= _LONGEST else _shortened(name)


def canary_name(pair: str, revision: str) -> str:
    """The name of the children of `revision`, a new one of `pair` that is compared with the serving one. Other
    children's names begin with `slipstream-`, so none of them has this one."""
    name = f"{CANARY_PREFIX}{revision[:_DIGEST_CHARS]}-{child_name(pair)}"
    return name if len(name) <= _LONGEST else _shortened(name)


def group_name(name: str) -> str:
    """The name of the LeaderWorkerSet beside other children of the name `name`. Not theirs, because a LeaderWorkerSet
    comes with a Service of its own name. It is short, because names and labels of pods add to it."""
    name = f"{name}-group"
    return name if len(name) <= _LONGEST_GROUP else _shortened(name, _LONGEST_GROUP)


def label_value(text: str) -> str:
    """`text` as the value of a label: unchanged if it is short enough, else cut and with a hash at its end."""
    return text if len(text) <= _LONGEST else _shortened(text)


def _shortened(text: str, longest: int = _LONGEST) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: longest - _DIGEST_CHARS - 1].rstrip('-.')}-{digest}"
