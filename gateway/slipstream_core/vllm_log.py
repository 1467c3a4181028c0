"""What vLLM's log says about the end of a server."""

from __future__ import annotations

import re

# Patterns of informative log lines, best first. The engine runs in its own process: its error comes first, and the API
# server's, which only refers to it, last.
_PREFIX = r"^(?:\(\w+ pid=\d+\) )?(?:ERROR \S+ \S+ \[[^\]]*\] )?"
_FAILURES = (
    re.compile(r"^(?:\S*api_server\S*|vllm|vllm serve): error: (?P<why>.+)$", re.MULTILINE),
    re.compile(r"Value error, (?P<why>.+?)(?: \[type=.*)?$", re.MULTILINE),
    re.compile(
        _PREFIX + r"(?P<why>(?!RuntimeError: Engine core init)(?:\w+\.)*\w+(?:Error|Exception): \S.*)$", re.MULTILINE
    ),
)


def informative_line(log: str) -> str:
    """The line of vLLM's log with the reason of its end; the last line if there is none."""
    for pattern in _FAILURES:
        if found := pattern.search(log):
            return found["why"].strip()
    return (log.splitlines() or [""])[-1]
