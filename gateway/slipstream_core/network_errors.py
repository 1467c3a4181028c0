"""Log messages for exceptions of HTTP client libraries, without any bytes that the server sent.

aiohttp quotes the bytes that it could not parse ("Invalid character in chunk size: ..."), and keeps partial headers in
the arguments of an exception. If the framing of a server is wrong, these bytes are text of an answer. For the same
reason errors that replace such an exception are raised `from None`, because a traceback prints the causes, too.
"""

from __future__ import annotations

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

NETWORK_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)
"""All exceptions of aiohttp for a connection or a response."""


def describe_network_error(error: BaseException) -> str:
    """One line: the reason of the operating system or TLS, or the names of the exceptions if the message may quote the
    server."""
    if isinstance(error, OSError) and str(error):
        return str(error)
    names = []
    cause: BaseException | None = error
    while cause is not None:
        names.append(type(cause).__name__)
        cause = cause.__cause__
    return " from ".join(names)
