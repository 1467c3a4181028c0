"""What an HTTP client library's exception may say in a log: nothing that the server sent.

aiohttp quotes the bytes that it could not parse ("Invalid character in chunk size: ..."), and keeps half a head in the
arguments of an exception. Where the framing of a server is wrong, these bytes are text of an answer. For the same
reason errors that stand for such an exception are raised `from None`: a traceback prints the causes, too.
"""

from __future__ import annotations

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

NETWORK_ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError)
"""Everything that aiohttp raises for a connection or an answer."""


def describe_network_error(error: BaseException) -> str:
    """One line: the reason that the operating system or TLS gives, or the names of the exceptions where the message
    may quote the server."""
    if isinstance(error, OSError) and str(error):
        return str(error)
    names = []
    cause: BaseException | None = error
    while cause is not None:
        names.append(type(cause).__name__)
        cause = cause.__cause__
    return " from ".join(names)
