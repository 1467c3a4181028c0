"""The interface of a source of the routing table, and the status that a source reports."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol, Self

import msgspec

Origin = Literal["file", "cluster", "snapshot", "fallback", "none"]


class ConfigurationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the gateway's configuration.

    `origin`: `file` or `cluster`; from the start until the cluster's first response, the stored `snapshot` of it, a
    `fallback` file, or `none`. `connected`: changes arrive at once. `age_s`: seconds since the source's last response,
    0 for a file. `generation` identifies the table; `without_servers` has the models that have no servers now.
    """

    origin: Origin
    connected: bool = True
    age_s: float = 0.0
    generation: str = ""
    without_servers: tuple[str, ...] = ()


class ConfigurationSource(Protocol):
    """Loads the routing table into the fleet on entry, and again after each change until it is exited."""

    def status(self) -> ConfigurationStatus: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
