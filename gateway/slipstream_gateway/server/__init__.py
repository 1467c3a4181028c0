"""HTTP/1.1 and the worker processes."""
