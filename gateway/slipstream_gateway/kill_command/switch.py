"""The kill switch of a cluster: set or removed in one object's spec, and which gateways have applied that.

Nothing else takes part: no operator, no Redis. A gateway confirms by its report (`manifest.reports`), a Lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from slipstream_gateway.errors import CommandError
from slipstream_gateway.kill_command.api import Answer, ApiError, KubernetesApi
from slipstream_gateway.manifest.objects import API_VERSION
from slipstream_gateway.manifest.reports import REPORT_SELECTOR, GatewayReport, object_key, read_report

_PLURALS = {"ModelPair": "modelpairs", "SpeculationPolicy": "speculationpolicies"}
_KINDS: Mapping[str, Literal["ModelPair", "SpeculationPolicy"]] = {
    **dict.fromkeys(("mp", "modelpair", "modelpairs"), "ModelPair"),
    **dict.fromkeys(("sp", "speculationpolicy", "speculationpolicies"), "SpeculationPolicy"),
}
_SELECTED = {"labelSelector": REPORT_SELECTOR}
_FORBIDDEN, _NOT_FOUND = 403, 404
_WATCH_AGAIN_S = 0.2


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The object whose kill switch is meant."""

    kind: Literal["ModelPair", "SpeculationPolicy"]
    name: str
    namespace: str

    @classmethod
    def parse(cls, reference: str, *, namespace: str) -> Target:
        """`modelpair/NAME`, `sp/NAME`, … as kubectl takes them. Raises `CommandError`."""
        kind, _, name = reference.partition("/")
        known = _KINDS.get(kind.lower().partition(".")[0])
        if known is None or not name or "/" in name:
            raise CommandError(f"expected modelpair/NAME or speculationpolicy/NAME, got {reference!r}", exit_code=2)
        return cls(kind=known, name=name, namespace=namespace)

    @property
    def key(self) -> str:
        return object_key(self.namespace, self.kind, self.name)

    @property
    def path(self) -> str:
        return f"{collection(self.kind, self.namespace)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Flipped(msgspec.Struct, frozen=True, kw_only=True):
    """The object after the patch, and when the API server acknowledged it, by `time.monotonic`."""

    item: Mapping[str, Any]
    generation: int
    at_s: float


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway that goes by the patch, `after_s` the acknowledgement at the latest."""

    gateway: str
    after_s: float


def _since(listed: Answer) -> dict[str, str]:
    return {"resourceVersion": listed.value["metadata"]["resourceVersion"]}


def collection(kind: str, namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{_PLURALS[kind]}"


async def flip(api: KubernetesApi, target: Target, *, on: bool) -> Flipped:
    """Set the kill switch, or remove the field, so that whoever owns the rest of the spec owns no kill switch.

    Raises:
        CommandError: it is not there, or may not be patched.
    """
    try:
        answer = await api.patch(target.path, {"spec": {"killSwitch": True if on else None}})
    except ApiError as exc:
        if exc.status == _NOT_FOUND:
            kind_is_known = exc.object_name == target.name
            what = (
                f"there is no {target}" if kind_is_known else f"there is no kind {target.kind}: are the CRDs installed?"
            )
            raise CommandError(f"{api.url}: {what}") from exc
        raise CommandError(f"the kill switch of {target} is as it was: {exc}") from exc
    at_s = time.monotonic()
    return Flipped(item=answer.value, generation=int(answer.value["metadata"]["generation"]), at_s=at_s)


async def other_kills(api: KubernetesApi, target: Target, item: Mapping[str, Any]) -> list[Target]:
    """Other objects whose kill switch is on for the same pair. Raises `ApiError`."""
    pair = target.name if target.kind == "ModelPair" else str(item["spec"].get("pair"))
    pairs = await api.get(collection("ModelPair", target.namespace))
    policies = await api.get(collection("SpeculationPolicy", target.namespace))
    found: list[Target] = []
    for kind, items in (("ModelPair", pairs.value["items"]), ("SpeculationPolicy", policies.value["items"])):
        for other in items:
            spec, name = other.get("spec") or {}, other["metadata"]["name"]
            of_the_pair = (name if kind == "ModelPair" else spec.get("pair")) == pair
            candidate = Target(kind=_KINDS[kind.lower()], name=name, namespace=target.namespace)
            if of_the_pair and spec.get("killSwitch") is True and candidate != target:
                found.append(candidate)
    return found


class Reports:
    """What the gateways of a namespace say that they go by, followed while `following` lasts."""

    def __init__(self, api: KubernetesApi, target: Target, *, namespace: str | None) -> None:
        """`namespace`: where the gateways report; None for all, or the target's where all may not be listed."""
        self._api = api
        self._target = target
        self._namespace = namespace
        self._fallback = namespace is None
        self._reports: dict[str, GatewayReport] = {}
        self._first_seen_s: dict[str, dict[int, float]] = {}  # by lease and generation
        self._server_ahead = timedelta()
        self._changed = asyncio.Event()
        self.listed = False
        self.error: ApiError | None = None

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def wait(self, timeout_s: float) -> None:
        """Until something changed; at most `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    @property
    def where(self) -> str:
        """Where the gateways' reports are looked for."""
        return f"namespace {self._namespace}" if self._namespace else "the whole cluster"

    @property
    def refused(self) -> bool:
        """Whether the API server does not let us read them: no use to wait."""
        return self.error is not None and self.error.status == _FORBIDDEN

    def applied(self, flipped: Flipped) -> list[Applied]:
        """Who goes by `flipped`, the quickest first."""
        found = []
        for key, report in self._alive():
            seen = self._first_seen_s.get(key, {})
            times = [at_s for generation, at_s in seen.items() if generation >= flipped.generation]
            if times:
                found.append(Applied(gateway=report.name, after_s=max(0.0, min(times) - flipped.at_s)))
        return sorted(found, key=lambda applied: applied.after_s)

    def missing(self, flipped: Flipped) -> list[str]:
        """Who is alive and goes by something older."""
        return [
            report.name
            for key, report in self._alive()
            if max(self._first_seen_s.get(key, ()), default=0) < flipped.generation
        ]

    def _alive(self) -> list[tuple[str, GatewayReport]]:
        now = datetime.now().astimezone() + self._server_ahead
        namespace = self._target.namespace
        reports = sorted(self._reports.items())
        return [(key, report) for key, report in reports if report.is_alive(now) and report.watches(namespace)]

    async def _follow(self) -> None:
        """Lists and watches, again and again: what fails is kept in `error` until it works."""
        while True:
            try:
                answer = await self._list()
                self.error = None
                async for event in self._api.watch(self._path, {**_SELECTED, **_since(answer)}):
                    self._observe(event["object"], gone=event["type"] == "DELETED")
            except ApiError as exc:
                self.error = exc
                self._changed.set()
            await asyncio.sleep(_WATCH_AGAIN_S)

    async def _list(self) -> Answer:
        try:
            answer = await self._api.get(self._path, _SELECTED)
        except ApiError as exc:
            if exc.status != _FORBIDDEN or not self._fallback:
                raise
            self._namespace, self._fallback = self._target.namespace, False
            answer = await self._api.get(self._path, _SELECTED)
        # Gateways and API server keep the cluster's time; this computer may not.
        self._server_ahead = answer.date - datetime.now().astimezone()
        items = answer.value["items"]
        for gone in self._reports.keys() - {_lease_key(item) for item in items}:
            del self._reports[gone]
        for item in items:
            self._observe(item)
        self.listed = True
        self._changed.set()
        return answer

    @property
    def _path(self) -> str:
        scope = f"/namespaces/{self._namespace}" if self._namespace else ""
        return f"/apis/coordination.k8s.io/v1{scope}/leases"

    def _observe(self, lease: Mapping[str, Any], *, gone: bool = False) -> None:
        report = read_report(lease)
        if report is None:
            return
        key = _lease_key(lease)
        if gone:
            self._reports.pop(key, None)
        else:
            self._reports[key] = report
            generation = report.generation_of(self._target.key)
            if generation is not None:
                self._first_seen_s.setdefault(key, {}).setdefault(generation, time.monotonic())
        self._changed.set()


def _lease_key(lease: Mapping[str, Any]) -> str:
    """Gateways of two namespaces may bear one name."""
    return f"{lease['metadata']['namespace']}/{lease['metadata']['name']}"
