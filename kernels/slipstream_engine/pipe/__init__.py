"""Runs an ASGI application inside Triton, behind two tensors of bytes: `request` and `response`.

Both are a JSON object in one line, then the bytes of the body. The request's object has `method`, `path` and `headers`;
the response's object has `status` and `headers`. A response arrives in pieces, which form it together. The application
is an engine by Slipstream's contract, or any other one: this package reads no body.
"""
