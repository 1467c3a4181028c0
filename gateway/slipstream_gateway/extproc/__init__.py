"""The gateway as an external processor of Envoy: another interface to the same endpoints.

Envoy keeps the connections to clients and servers. For each request it opens a gRPC stream to this process
(`envoy.service.ext_proc.v3.ExternalProcessor`), which decides, changes the request, and learns from the response.
"""
