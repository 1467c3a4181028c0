"""The decision as a callback of LiteLLM's proxy, which keeps the connections to clients and servers.

`callback` imports LiteLLM and is for its processes only; `proxy_requests` does not.
"""
