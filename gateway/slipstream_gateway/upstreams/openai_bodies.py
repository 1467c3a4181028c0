"""Bodies of an OpenAI-compatible server's responses: whole answers, and refusals as errors."""

from __future__ import annotations

import aiohttp
from slipstream_core.errors import Overloaded, SlipstreamError, UpstreamFailed, UpstreamRejected, UpstreamUnavailable
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error

from slipstream_gateway.upstreams.transport import HttpResponse
from slipstream_gateway.upstreams.valid_json import valid_json

MAX_BODY_BYTES = 64 * 1024 * 1024


async def read_whole(response: HttpResponse) -> bytes:
    """The body of a response with status 200, which is closed. Raises `UpstreamFailed`."""
    try:
        return await read_body(response)
    except NETWORK_ERRORS as exc:
        raise UpstreamFailed(
            "The upstream closed the connection before the end of its answer.",
            detail=describe_network_error(exc),
            broke=True,
        ) from None
    finally:
        response.close()


async def read_body(response: HttpResponse | aiohttp.ClientResponse) -> bytes:
    """The body of any response. Raises `UpstreamFailed` beyond `MAX_BODY_BYTES`, and the errors of the network."""
    parts, total = [], 0
    while data := await response.content.readany():
        parts.append(data)
        total += len(data)
        if total > MAX_BODY_BYTES:
            raise UpstreamFailed(f"The upstream's answer exceeds {MAX_BODY_BYTES} bytes.")
    return b"".join(parts)


async def refusal(response: HttpResponse, *, own_key: bool) -> SlipstreamError:
    """The error for a status other than 200. `own_key`: the gateway's key was sent, not the client's."""
    status = response.status
    try:
        body = await read_body(response)
    except NETWORK_ERRORS as exc:
        return UpstreamFailed(
            f"The upstream returned status {status} and closed the connection.", detail=describe_network_error(exc)
        )
    finally:
        response.close()
    if status == 429:
        return Overloaded("The upstream is overloaded.", retry_after_s=_retry_after_s(response))
    if status == 503:
        return UpstreamUnavailable("The upstream is not ready.", retry_after_s=_retry_after_s(response))
    if own_key and status in (401, 403):  # not the client's fault, and the body may quote the key
        return UpstreamFailed("The upstream refused the gateway's own credentials.", detail=f"status {status}")
    if 400 <= status < 500:
        return UpstreamRejected(status, valid_json(body))
    # The body is dropped: it may quote the prompt, and details are logged.
    return UpstreamFailed(f"The upstream returned status {status}.", detail=f"{len(body)} bytes")


def _retry_after_s(response: HttpResponse) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else 1.0
