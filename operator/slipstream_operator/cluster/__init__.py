"""The operator's view of the cluster: its API, the cache of its objects, and the objects that the operator writes."""
