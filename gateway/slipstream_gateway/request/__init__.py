"""Takes a parsed request to an upstream: classify, decide, pick a replica, stream, measure."""
