"""The objects that a pair needs in its cluster, as plain dicts for server-side apply: only fields that are ours.

Pure: from a pair and its Deployment as it is, to what should be. `children_of` is the way in.
"""

from slipstream_operator.children.all import children_of
from slipstream_operator.children.hashes import REPOSITORY_ANNOTATION, WEIGHTS_ANNOTATION
from slipstream_operator.children.preflight import PREFLIGHT_CONTAINER
from slipstream_operator.children.server import SERVER_CONTAINER

__all__ = [
    "PREFLIGHT_CONTAINER",
    "REPOSITORY_ANNOTATION",
    "SERVER_CONTAINER",
    "WEIGHTS_ANNOTATION",
    "children_of",
]
