"""The cluster as the operator sees it: its API, what is known of its objects, and what is written into it."""
