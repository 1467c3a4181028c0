"""YAML to `ModelPair` and `SpeculationPolicy` objects. One error lists all problems of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from slipstream_core.errors import ManifestError
from slipstream_core.manifest.check import Problem, check, show
from slipstream_core.manifest.documents import read_documents
from slipstream_core.manifest.objects import ManifestObject, ModelPair, SpeculationPolicy
from slipstream_core.manifest.rules import check_object, check_together

_KINDS: dict[str, type[ModelPair] | type[SpeculationPolicy]] = {
    "ModelPair": ModelPair,
    "SpeculationPolicy": SpeculationPolicy,
}
TYPES = {name: inspect.type_info(kind) for name, kind in _KINDS.items()}


def parse(data: bytes | str, *, name: str = "manifest") -> tuple[ManifestObject, ...]:
    """The objects of a manifest, in the order of the file. `name` is the file's name for messages.

    Raises:
        ManifestError: with one line for every problem, `file: Kind/name: field.path: what, got value`.
    """
    documents = read_documents(data.encode("utf-8", "replace") if isinstance(data, str) else data, name=name)
    return parse_documents(documents, name=name)


def parse_documents(documents: Sequence[object], *, name: str) -> tuple[ManifestObject, ...]:
    """As `parse`, from plain values such as custom resources. Raises `ManifestError` as `parse` does."""
    objects: list[ManifestObject] = []
    problems: list[tuple[str, Problem]] = []
    for number, document in enumerate(documents, start=1):
        value = without_status(document)
        label = _label(value, number)
        found = list(check_document(value))
        if not found:
            item = convert(value, f"{name}: {label}")
            found = list(check_object(item))
            objects.append(item)
        problems += [(label, problem) for problem in found]
    if not problems:  # rules between objects are checked once each object is valid, to avoid follow-on errors
        problems = [(label_of(item), problem) for item, problem in check_together(objects)]
    if not problems and not any(isinstance(item, ModelPair) for item in objects):
        raise ManifestError("it has no ModelPair", field=name)
    if problems:
        raise _error(name, problems)
    return tuple(objects)


def label_of(item: ManifestObject) -> str:
    """`ModelPair/acme`: the form of an object's name in messages."""
    return f"{type(item).__name__}/{item.metadata.name}"


def without_status(value: object) -> object:
    """`value` without `status`, which a cluster writes and `kubectl get -o yaml` therefore prints."""
    if isinstance(value, Mapping) and "status" in value:
        return {key: item for key, item in value.items() if key != "status"}
    return value


def check_document(value: object) -> Iterator[Problem]:
    """Yields every reason why `value`, a resource without its status, is not a valid object of the two kinds."""
    if not isinstance(value, Mapping):
        yield Problem("", f"must be a mapping with apiVersion, kind, metadata and spec, got {show(value)}")
        return
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TYPES:
        yield Problem("kind", f"must be {' or '.join(TYPES)}, got {show(kind)}")
        return
    yield from check(value, TYPES[kind])


def convert(value: Any, label: str) -> ManifestObject:
    try:
        return msgspec.convert(value, type=_KINDS[value["kind"]])
    except msgspec.ValidationError as error:
        raise ManifestError(str(error), field=label) from error


def _label(value: object, number: int) -> str:
    """`Kind/name` as far as the document has them, else `document 2`."""
    if not isinstance(value, Mapping) or value.get("kind") not in (*_KINDS,):
        return f"document {number}"
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{value['kind']}/{name}" if isinstance(name, str) and name.isprintable() else f"document {number}"


def _error(name: str, problems: Sequence[tuple[str, Problem]]) -> ManifestError:
    lines = tuple(f"{name}: {label}: {problem}" for label, problem in problems)
    label, problem = problems[0]
    error = ManifestError("\n".join(lines), problems=lines)
    error.field = f"{label}: {problem.path}" if problem.path else label
    return error
