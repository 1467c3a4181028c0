"""Names that the operator gives and others look for: of a pair's children in a cluster, and their labels."""

from __future__ import annotations

import hashlib

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
PART_OF_SLIPSTREAM = "slipstream"
OPERATOR = "slipstream-operator"
PAIR_LABEL = "slipstream.dev/pair"
RELEASE_LABEL = "slipstream.dev/release"
GRPC_PORT_NAME = "grpc"

_LONGEST = 63  # a DNS label, which a Service's name has to be
_DIGEST_CHARS = 8


def child_name(pair: str) -> str:
    """What the children of the pair `pair` are called: `slipstream-<pair>`, the same for every kind of child.

    A longer name than Kubernetes allows is cut, and ends with a hash of the whole, so that two pairs never share one.
    """
    name = f"slipstream-{pair}"
    return name if len(name) <= _LONGEST else _shortened(name)


def label_value(text: str) -> str:
    """`text` as the value of a label: itself where it is short enough, else cut, with a hash at its end."""
    return text if len(text) <= _LONGEST else _shortened(text)


def _shortened(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{text[: _LONGEST - _DIGEST_CHARS - 1].rstrip('-.')}-{digest}"
