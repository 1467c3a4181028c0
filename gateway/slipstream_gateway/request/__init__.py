"""Runs a parsed request on an upstream: classify, decide, pick a replica, stream, measure."""
