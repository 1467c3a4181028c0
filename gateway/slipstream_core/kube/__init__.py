"""The Kubernetes API: one client, one reflector, one way to find credentials. No other module imports `kubernetes`."""

import logging

# A command that configures no logging prints its own messages; Python's last-resort handler must not add ours.
logging.getLogger(__name__).addHandler(logging.NullHandler())
