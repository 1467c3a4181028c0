"""A Kubernetes Lease with one holder at a time, as in Kubernetes' own components.

Clocks of other processes are ignored: a Lease has expired if it was observed unchanged for its whole duration.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from slipstream_core.kube.client import KubeClient

from slipstream_operator.types import KubeObject

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


class Lease:
    """The Lease `name` in `namespace` for `holder`. `clock_s` is monotonic.

    `held_by` is its holder as of the last `take`.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        holder: str,
        duration_s: int,
        clock_s: Callable[[], float],
    ) -> None:
        self._client, self._name, self._holder = client, name, holder
        self._duration_s, self._clock_s = duration_s, clock_s
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{name}"
        self._seen: tuple[str, float] = ("", clock_s())
        self.held_by = ""

    async def take(self) -> bool:
        """Take or renew the Lease. Returns whether `holder` has it now.

        Raises:
            KubeConflict: another process wrote first. The API server rejects one of two simultaneous attempts.
            KubeError: the Lease cannot be read or written.
        """
        lease = await self._client.find(self._path)
        if lease is None:
            body: KubeObject = {"metadata": {"name": self._name}, "spec": self._spec({})}
            body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            await self._client.create(self._collection, body)
        elif self._is_free(lease):
            await self._client.replace(self._path, {**lease, "spec": self._spec(_spec_of(lease))})
        else:
            self.held_by = str(_spec_of(lease)["holderIdentity"])
            return False
        self.held_by = self._holder
        return True

    async def give_back(self) -> None:
        """Release the Lease, so that another process can take it at once.

        Raises:
            KubeError: the Lease cannot be read or written.
        """
        lease = await self._client.find(self._path)
        if lease is not None and _spec_of(lease).get("holderIdentity") == self._holder:
            spec = {**_spec_of(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._client.replace(self._path, {**lease, "spec": spec})

    def _is_free(self, lease: KubeObject) -> bool:
        spec = _spec_of(lease)
        if spec.get("holderIdentity") in ("", None, self._holder):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, self._clock_s())
        return self._clock_s() - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._duration_s)

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime(_TIME_FORMAT)
        renewed = before.get("holderIdentity") == self._holder
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": self._duration_s,
            "acquireTime": (before.get("acquireTime") or now) if renewed else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not renewed),
        }


def _spec_of(lease: KubeObject) -> dict[str, Any]:
    """The Lease's spec; empty for a Lease that was created without one."""
    spec: dict[str, Any] = lease.get("spec") or {}
    return spec
