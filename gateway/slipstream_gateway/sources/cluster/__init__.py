"""The manifest from a cluster: watched objects become the routing table, and applied generations are reported back.

The Kubernetes API itself is in `slipstream_core.kube`.
"""
