"""The objects that a pair needs in its cluster: plain dicts for server-side apply, with the operator's fields only.

Pure: `all.children_of` derives them from a pair and its present Deployment.
"""
