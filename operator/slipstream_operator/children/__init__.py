"""The objects that a pair needs in its cluster: plain dicts for server-side apply, with the operator's fields only.

Pure: `children_of` derives them from a pair and its present Deployment.
"""

from slipstream_operator.children.all import children_of
from slipstream_operator.children.hashes import REPOSITORY_ANNOTATION, WEIGHTS_ANNOTATION
from slipstream_operator.children.preflight import PREFLIGHT_CONTAINER
from slipstream_operator.children.weights import WEIGHTS_CONTAINER

__all__ = [
    "PREFLIGHT_CONTAINER",
    "REPOSITORY_ANNOTATION",
    "WEIGHTS_ANNOTATION",
    "WEIGHTS_CONTAINER",
    "children_of",
]
