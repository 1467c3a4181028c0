"""Errors of the operator. Those of the API server are `slipstream_core.kube.errors`.

OperatorError
├── ChildrenRejected   the API server, or the owner of an object of that name, refuses children of a pair
├── ForeignObject      an object of a child's name exists and has another owner; it is not changed
└── LeadershipLost     another instance has taken over, or the Lease could not be renewed in time
"""

from __future__ import annotations

from slipstream_core.errors import SlipstreamError


class OperatorError(SlipstreamError):
    """The root. `str(error)` is one clear line for a person."""


class ChildrenRejected(OperatorError):
    """The message has the reason for each child."""


class ForeignObject(OperatorError):
    """The message says which object."""


class LeadershipLost(OperatorError):
    """This process must not write any more."""
