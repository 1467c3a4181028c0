"""Where the routing table comes from: what a source of it says of itself, and what the application asks of one."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

Origin = Literal["file", "cluster", "snapshot", "fallback", "none"]


class ConfigurationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway goes by.

    `origin`: a `file` or a `cluster`; while the cluster has not been heard since the start, the `snapshot` that was
    kept of it, a `fallback` file, or `none`. `connected`: changes arrive at once. `age_s`: since the source was heard
    the last time, 0 for a file. `generation` names the table; `without_servers` are models that have none now.
    """

    origin: Origin
    connected: bool = True
    age_s: float = 0.0
    generation: str = ""
    without_servers: tuple[str, ...] = ()


class ConfigurationSource(Protocol):
    """Brings the routing table to the fleet at the start, and whenever it changes, for as long as it is entered."""

    def status(self) -> ConfigurationStatus: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
