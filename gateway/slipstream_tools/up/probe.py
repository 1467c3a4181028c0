"""HTTP requests of `slipstream up` to the servers that it has started."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

PROBE_TIMEOUT_S = 2.0
_QUICK_TIMEOUT_S = 1.0  # Ctrl-C waits for such a probe


class Probe:
    """A client that uses no proxy, follows no redirect and keeps no connection."""

    def __init__(self) -> None:
        import httpx  # takes 0.14 s of CPU, which `slipstream up --help` need not wait for

        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(trust_env=False, limits=limits)
        self._failure = httpx.HTTPError

    def get(self, url: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> httpx.Response:
        """Raises `OSError` if there is no answer."""
        try:
            return self._client.get(url, timeout=timeout_s)
        except self._failure as exc:
            raise OSError(str(exc) or type(exc).__name__) from exc

    def is_ok(self, url: str) -> bool:
        """Whether the server answers 200, soon."""
        try:
            return self.get(url, timeout_s=_QUICK_TIMEOUT_S).status_code == 200
        except OSError:
            return False
