"""A small gRPC server on asyncio.

It serves streams of messages to a few trusted clients over connections that stay open, as Envoy opens them. The reason
for it is in docs/decisions/grpc-server.md.
"""
