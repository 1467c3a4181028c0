"""The objects that a pair needs in its cluster: plain dicts for server-side apply, with the operator's fields only.

Pure: `children_of` derives them from a pair and its present Deployment.
"""

from slipstream_operator.children.all import children_of
from slipstream_operator.children.init_containers import PREFLIGHT_CONTAINER, WEIGHTS_CONTAINER
from slipstream_operator.children.repository import REPOSITORY_ANNOTATION, WEIGHTS_ANNOTATION

__all__ = [
    "PREFLIGHT_CONTAINER",
    "REPOSITORY_ANNOTATION",
    "WEIGHTS_ANNOTATION",
    "WEIGHTS_CONTAINER",
    "children_of",
]
