"""YAML to `ModelPair` and `SpeculationPolicy` objects. One error lists all problems of a file.

The YAML is untrusted: bounded in size and depth; no aliases, tags or duplicate keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from slipstream_core.errors import ManifestError
from slipstream_core.manifest.check import Problem, check, show
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.rules import check_object, check_together
from slipstream_core.manifest.speculation_policy import ManifestObject, SpeculationPolicy

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
        item, found = parse_object(value)
        problems += [(label, problem) for problem in found]
        if item is not None:
            objects.append(item)
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


def parse_object(value: object) -> tuple[ManifestObject | None, tuple[Problem, ...]]:
    """The object in a resource without its status, or all reasons why there is none."""
    if not isinstance(value, Mapping):
        message = f"must be a mapping with apiVersion, kind, metadata and spec, got {show(value)}"
        return None, (Problem("", message),)
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TYPES:
        return None, (Problem("kind", f"must be {' or '.join(TYPES)}, got {show(kind)}"),)
    if problems := tuple(check(value, TYPES[kind])):
        return None, problems
    try:
        item = msgspec.convert(value, type=_KINDS[kind])
    except msgspec.ValidationError as error:
        return None, (Problem("", str(error)),)
    problems = tuple(check_object(item))
    return (None if problems else item), problems


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


MAX_BYTES = 1024 * 1024
MAX_DOCUMENTS = 256
MAX_DEPTH = 32
MAX_NUMBER_CHARS = 1000

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]  # the base is C or Python, whichever PyYAML was built with
    """The safe loader, except that dates stay text and duplicate keys are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_bounded_int(self, node: yaml.ScalarNode) -> int:
        """YAML 1.1 has hexadecimal, binary and base-60 numbers, and Python refuses to format very long integers."""
        if len(node.value) > MAX_NUMBER_CHARS:
            problem = f"a number has more than {MAX_NUMBER_CHARS} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        number: int = self.construct_yaml_int(node)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_bounded_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(data: bytes, *, name: str) -> list[Any]:
    """The values of all non-empty documents in `data`. `name` is the file's name for messages.

    Raises:
        ManifestError: `data` is not UTF-8 or not YAML, is too large or too deep, or uses aliases or tags.
    """
    if len(data) > MAX_BYTES:
        raise ManifestError(f"larger than {MAX_BYTES} bytes: {len(data)}", field=name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"not UTF-8 at byte {error.start}", field=name) from error
    try:
        _check_events(text, name)
        values = [value for value in yaml.load_all(text, Loader=_Loader) if value is not None]
    except yaml.YAMLError as error:
        raise ManifestError(_yaml_message(error), field=name) from error
    except (
        ValueError,
        LookupError,
        TypeError,
        OverflowError,
    ) as error:  # PyYAML raises these for some malformed scalars
        raise ManifestError(f"not valid YAML: {error}", field=name) from error
    if not values:
        raise ManifestError("empty: it has no ModelPair", field=name)
    return values


def _check_events(text: str, name: str) -> None:
    """Rejects the dangerous features of YAML before any value is built."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = f"line {event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ManifestError(f"{line}: aliases (*{event.anchor}) are not allowed", field=name)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise ManifestError(f"{line}: tags ({tag}) are not allowed", field=name)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise ManifestError(f"{line}: nested deeper than {MAX_DEPTH} levels", field=name)
        if documents > MAX_DOCUMENTS:
            raise ManifestError(f"{line}: more than {MAX_DOCUMENTS} documents", field=name)


def _yaml_message(error: yaml.YAMLError) -> str:
    """PyYAML's several lines as one line with the position."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context, error.problem) if part)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{place}not valid YAML: {what}"
