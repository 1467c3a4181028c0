"""The CustomResourceDefinitions of the two kinds, generated from the types that parse them, and the chart that installs
them.

python -m slipstream_core.manifest.crd charts/slipstream-crds/templates
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from slipstream_core.manifest.model_pair import API_VERSION, Metadata, ModelPair, ModelPairSpec
from slipstream_core.manifest.speculation_policy import SpeculationPolicy, SpeculationPolicySpec
from slipstream_core.manifest.status import ModelPairStatus, SpeculationPolicyStatus
from slipstream_core.manifest.structural import Schema, structural, summary

GROUP, VERSION = API_VERSION.split("/")
CATEGORY = "slipstream"

# Without this annotation Helm would delete the definitions with the chart, and with them all pairs and policies of a
# cluster.
_KEEP = "helm.sh/resource-policy: keep"


class Column(NamedTuple):
    """A column of `kubectl get`. `wide` columns appear with `-o wide` only."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False


class _Kind(NamedTuple):
    item: type[msgspec.Struct]
    spec: type[msgspec.Struct]
    status: type[msgspec.Struct]
    plural: str
    short: str
    columns: tuple[Column, ...]
    scale: Mapping[str, str] | None = None
    """The paths of the subresource `scale`; None: the kind has none."""


_STATE = Column("State", ".status.state", "State of the object in one word.")
_FIGURES = (
    Column("Accept", ".status.accept", "Acceptance rate over all classes."),
    Column("P95", ".status.p95", "p95 of the end-to-end latency of speculative answers."),
    Column("Speculating", ".status.speculating", "Classes that speculate, of all classes seen."),
    Column("Reason", ".status.reason", "Reason for the state."),
)
# Generations, not "synced: 3": a column shows a single field, so that a count would still be displayed, as if for the
# newest spec, when the operator is down. The API server maintains the first generation; the others can only lag behind
# it.
_REACH = (
    Column("Killed", ".spec.killSwitch", "Whether the kill switch is on.", "boolean", wide=True),
    Column("Generation", ".metadata.generation", "Generation of the newest spec.", "integer", wide=True),
    Column("Observed", ".status.observedGeneration", "Generation that the status describes.", "integer", wide=True),
    Column(
        "Applied",
        ".status.gateways.oldestGeneration",
        "Oldest generation in use by any gateway. When it equals the newest, all gateways have applied the newest.",
        "integer",
        wide=True,
    ),
    Column("Gateways", ".status.gateways.total", "Gateways that watch this namespace.", "integer", wide=True),
)
_AGE = Column("Age", ".metadata.creationTimestamp", "Time of creation.", "date")

_KINDS = (
    _Kind(
        item=ModelPair,
        spec=ModelPairSpec,
        status=ModelPairStatus,
        plural="modelpairs",
        short="mp",
        columns=(
            _STATE,
            Column("Target", ".spec.target.source", "Checkpoint of the target."),
            Column("Draft", ".spec.draft['source','kind']", "Checkpoint of the draft, or its kind."),
            Column("Ready", ".status.conditions[?(@.type=='Ready')].status", "Whether the pair can be served."),
            *_FIGURES,
            Column("Servers", ".status.replicas.ready", "Ready servers.", "integer", wide=True),
            Column("Desired", ".status.replicas.desired", "Desired servers.", "integer", wide=True),
            *_REACH,
            _AGE,
        ),
        scale={
            "specReplicasPath": ".spec.serving.replicas",
            "statusReplicasPath": ".status.replicas.current",
            "labelSelectorPath": ".status.selector",
        },
    ),
    _Kind(
        item=SpeculationPolicy,
        spec=SpeculationPolicySpec,
        status=SpeculationPolicyStatus,
        plural="speculationpolicies",
        short="sp",
        columns=(
            _STATE,
            Column("Pair", ".spec.pair", "ModelPair that the policy applies to."),
            *_FIGURES,
            *_REACH,
            _AGE,
        ),
    ),
)


def crds() -> list[dict[str, Any]]:
    """Both definitions, ready for an API server."""
    return [_definition(kind) for kind in _KINDS]


def templates() -> dict[str, str]:
    """The chart's templates by file name: the definitions with placeholders for labels and annotations."""
    return {f"{definition['spec']['names']['plural']}.yaml": _template(definition) for definition in crds()}


def _definition(kind: _Kind) -> dict[str, Any]:
    name = kind.item.__name__
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}} if kind.scale is None else {"status": {}, "scale": dict(kind.scale)},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _root(kind)},
    }
    names = {
        "kind": name,
        "listKind": f"{name}List",
        "plural": kind.plural,
        "singular": name.lower(),
        "shortNames": [kind.short],
        "categories": [CATEGORY],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _column(column: Column) -> dict[str, Any]:
    written: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return written | {"description": column.description} | ({"priority": 1} if column.wide else {})


def _root(kind: _Kind) -> Schema:
    """The root schema. The API server adds the schema of `metadata` itself, and lets a CRD restrict the name alone."""
    name = structural(Metadata)["properties"]["name"]
    return {
        "type": "object",
        "description": summary(kind.item.__doc__),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of this kind: {API_VERSION}."},
            "kind": {"type": "string", "description": f"This kind: {kind.item.__name__}."},
            "metadata": {"type": "object", "properties": {"name": _without(name, "description")}},
            "spec": structural(kind.spec),
            "status": structural(kind.status),
        },
    }


def _without(schema: Mapping[str, Any], key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


def _template(definition: Mapping[str, Any]) -> str:
    spec = yaml.safe_dump({"spec": definition["spec"]}, sort_keys=False, allow_unicode=True, width=120)
    return f"""\
# Made by `python -m slipstream_core.manifest.crd`: do not edit by hand, change the types instead.
apiVersion: {definition["apiVersion"]}
kind: {definition["kind"]}
metadata:
  name: {definition["metadata"]["name"]}
  labels:
    app.kubernetes.io/name: {{{{ .Chart.Name }}}}
    app.kubernetes.io/part-of: slipstream
    app.kubernetes.io/managed-by: {{{{ .Release.Service }}}}
    helm.sh/chart: {{{{ .Chart.Name }}}}-{{{{ .Chart.Version | replace "+" "_" }}}}
    {{{{- with .Values.labels }}}}
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
  annotations:
    {_KEEP}
    {{{{- with .Values.annotations }}}}
    {{{{- toYaml . | nindent 4 }}}}
    {{{{- end }}}}
{spec}"""


def main(arguments: Sequence[str]) -> int:
    """Writes the chart's templates into the folder that is the only argument."""
    if len(arguments) != 1:
        print("usage: python -m slipstream_core.manifest.crd FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in templates().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
