"""The kill switch of a cluster: set or removed in one object's spec, without operator and Redis."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.kube.client import KubeClient
from slipstream_core.kube.errors import KubeError, KubeNotFound
from slipstream_core.manifest.model_pair import API_VERSION
from slipstream_core.manifest.reports import object_key

_PLURALS = {"ModelPair": "modelpairs", "SpeculationPolicy": "speculationpolicies"}
_KINDS: Mapping[str, Literal["ModelPair", "SpeculationPolicy"]] = {
    **dict.fromkeys(("mp", "modelpair", "modelpairs"), "ModelPair"),
    **dict.fromkeys(("sp", "speculationpolicy", "speculationpolicies"), "SpeculationPolicy"),
}
# Reasons of the operator's conditions for an object that does not decide about the requests that its name suggests.
_REFUSED = {"ModelPair": {"ModelNameTaken", "Unresolved"}, "SpeculationPolicy": {"PairNotFound"}}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The object whose kill switch is turned."""

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
    uid: str
    generation: int
    at_s: float

    @property
    def refusal(self) -> str | None:
        """Why the operator refuses the object, with the condition's reason; None where it does not. Another object may
        serve what a refused one names."""
        status = self.item.get("status")
        conditions = status.get("conditions") if isinstance(status, Mapping) else None
        for condition in conditions if isinstance(conditions, list) else ():
            # A status of any content must not prevent a kill.
            if isinstance(condition, Mapping) and _is_refusal(self.item["kind"], condition):
                return f"{condition['reason']}: {condition.get('message')}"
        return None


def _is_refusal(kind: str, condition: Mapping[str, Any]) -> bool:
    is_false = condition.get("type") in ("Ready", "ResolvedRefs") and condition.get("status") == "False"
    return is_false and str(condition.get("reason")) in _REFUSED[kind]


def collection(kind: str, namespace: str) -> str:
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{_PLURALS[kind]}"


async def flip(client: KubeClient, target: Target, *, on: bool) -> Flipped:
    """Set the kill switch, or remove the field, so that the owner of the rest of the spec does not own the kill switch.

    Raises:
        CommandError: the object does not exist, or may not be patched.
    """
    try:
        item = await client.merge(target.path, {"spec": {"killSwitch": True if on else None}})
    except KubeNotFound as exc:
        is_kind_known = exc.object_name == target.name
        missing = f"{target}" if is_kind_known else f"kind {target.kind}: are the CRDs installed?"
        raise CommandError(f"{client.url}: there is no {missing}") from exc
    except KubeError as exc:
        raise CommandError(f"the kill switch of {target} is unchanged: {exc}") from exc
    at_s = time.monotonic()
    metadata = item["metadata"]
    return Flipped(item=item, uid=metadata["uid"], generation=int(metadata["generation"]), at_s=at_s)


async def other_kills(client: KubeClient, target: Target, item: Mapping[str, Any]) -> list[Target]:
    """Other objects whose kill switch is on for the same pair. Raises `KubeError`."""
    pair = target.name if target.kind == "ModelPair" else str(item["spec"].get("pair"))
    found: list[Target] = []
    for kind in _PLURALS:
        for other in (await client.list(collection(kind, target.namespace))).items:
            spec, name = other.get("spec") or {}, other["metadata"]["name"]
            of_the_pair = (name if kind == "ModelPair" else spec.get("pair")) == pair
            candidate = Target(kind=_KINDS[kind.lower()], name=name, namespace=target.namespace)
            if of_the_pair and spec.get("killSwitch") is True and candidate != target:
                found.append(candidate)
    return found
