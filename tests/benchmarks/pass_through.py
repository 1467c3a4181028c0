"""The least that a Python gateway can do, as a floor for added latency.

    python -m tests.benchmarks.pass_through PORT URL

Each POST goes on unread; its answer comes back as it arrives. The same server and client libraries as the gateway's.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send


class PassThrough:
    """An ASGI application before the server at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._session is not None
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url + scope["path"], data=body, headers=headers) as response:
            kind = response.headers["content-type"].encode()
            await send({"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]})
            async for data in response.content.iter_any():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("url")
    args = parser.parse_args()
    proxy = PassThrough(args.url)
    application = Starlette(lifespan=proxy.lifespan)
    application.router.default = proxy
    uvicorn.run(application, host="127.0.0.1", port=args.port, log_level="warning", loop="uvloop", http="httptools")


if __name__ == "__main__":
    main()
