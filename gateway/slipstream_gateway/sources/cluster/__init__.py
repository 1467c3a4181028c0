"""The manifest out of a cluster: watched objects become the routing table, and what was applied is reported back.

The only room, with the kill command, that speaks to the Kubernetes API.
"""
