"""Manifests of a bench: the user's own, adapted for comparing modes, and the policy that a run recommends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from slipstream_core.errors import CommandError
from slipstream_core.manifest import (
    Draft,
    ManifestObject,
    ModelPair,
    Route,
    SpeculationPolicy,
    Target,
    compile_table,
    parse,
    parse_documents,
    read_file,
    resolve_source,
)
from slipstream_core.manifest.model_pair import Metadata
from slipstream_core.manifest.parse import read_documents
from slipstream_core.manifest.rollout import Thresholds
from slipstream_core.manifest.rules import pair_key_of
from slipstream_core.manifest.speculation_policy import SpeculationPolicySpec

from slipstream_tools.bench.cases import Prices

_Model = TypeVar("_Model", Target | None, Draft | None)


class BenchManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest at `path`, with the pair that is measured and its policy; None where it has none."""

    path: Path
    objects: tuple[ManifestObject, ...]
    pair: ModelPair
    policy: SpeculationPolicy | None

    @property
    def prices(self) -> Prices:
        """By arm, as the pair says."""
        route = compile_table(self.objects).routes[self.pair.spec.model]
        speculative = route.speculative or route.plain
        return Prices(plain=route.plain.price_per_gpu_hour, speculative=speculative.price_per_gpu_hour)

    def served(self, draft: str | None) -> bytes:
        """The manifest as a bench serves it: clients may choose the mode, parity replays are off so that they add no
        load, sources are absolute, a pair without a policy gets a default one, and `draft` replaces the pair's own
        where given. Raises `CommandError`."""
        pair = self.pair if draft is None else _with_draft(self.pair, draft)
        policy = self.policy or default_policy(self.pair.metadata)
        policy = msgspec.structs.replace(policy, spec=_allowed(policy.spec))
        others = [item for item in self.objects if item not in (self.pair, self.policy)]
        folder = self.path.resolve().parent
        return dump([_absolute(item, folder) for item in (pair, policy, *others)])


def read_manifest(path: Path, model: str | None) -> BenchManifest:
    """The manifest at `path`; the pair is the one that serves `model`, or the first.

    Raises:
        ManifestError: the manifest is invalid.
        CommandError: no pair serves `model`.
    """
    objects = parse(read_file(path), name=path.name)
    pairs = [item for item in objects if isinstance(item, ModelPair)]
    pair = next((pair for pair in pairs if model in (None, pair.spec.model)), None)
    if pair is None:
        known = ", ".join(pair.spec.model for pair in pairs)
        raise CommandError(f"{path}: no ModelPair serves the model {model!r}; it has: {known}", exit_code=2)
    policies = (item for item in objects if isinstance(item, SpeculationPolicy))
    policy = next((item for item in policies if pair_key_of(item) == pair.metadata.key), None)
    return BenchManifest(path=path, objects=objects, pair=pair, policy=policy)


def _allowed(spec: SpeculationPolicySpec) -> SpeculationPolicySpec:
    """Without parity replays, thresholds on their result are removed, too."""
    replace = msgspec.structs.replace

    def unreplayed(thresholds: Thresholds | None) -> Thresholds | None:
        return thresholds and replace(thresholds, parity_loss=None)

    rules = tuple(replace(rule, thresholds=unreplayed(rule.thresholds)) for rule in spec.classes)
    thresholds = replace(spec.thresholds, parity_loss=None)
    return replace(spec, allow_client_mode=True, parity_share=0.0, thresholds=thresholds, classes=rules)


def default_policy(pair: Metadata) -> SpeculationPolicy:
    """The policy of a pair that has none, in the same namespace."""
    return SpeculationPolicy(
        api_version="slipstream.dev/v1alpha1", metadata=pair, spec=SpeculationPolicySpec(pair=pair.name)
    )


def dump(objects: Sequence[ManifestObject], *, whole: bool = True) -> bytes:
    """Objects as YAML documents; without `whole`, fields that have their default are left out."""
    documents = [_plain(item, whole=whole) for item in objects]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120, encoding="utf-8")


def _plain(value: ManifestObject, *, whole: bool) -> Any:
    """Plain values by wire names, as YAML would give them."""
    encoded = msgspec.json.decode(msgspec.json.encode(value))
    if whole or not isinstance(value, SpeculationPolicy):
        return encoded
    defaults = msgspec.json.decode(msgspec.json.encode(SpeculationPolicySpec(pair=value.spec.pair)))
    spec = {name: field for name, field in encoded["spec"].items() if name == "pair" or field != defaults[name]}
    # A cluster takes no null where a field may be left out.
    return {**encoded, "metadata": _without_nulls(encoded["metadata"]), "spec": {**spec, **_without_nulls(spec)}}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(field) for name, field in value.items() if field is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _with_draft(pair: ModelPair, draft: str) -> ModelPair:
    """`draft` is `ngram`, a checkpoint folder, a shipped draft such as `embedded:draft`, or `ngram+` one of these."""
    if pair.spec.draft is None:
        raise CommandError(f"--drafts: ModelPair/{pair.metadata.name} has no draft to replace", exit_code=2)
    return msgspec.structs.replace(pair, spec=msgspec.structs.replace(pair.spec, draft=_draft(draft)))


def _draft(text: str) -> Draft:
    if text == "ngram":
        return Draft(kind="ngram")
    name = text.removeprefix("ngram+")
    source = name if name.startswith("embedded:") else str(Path(name).resolve())
    return Draft(kind="model" if name == text else "hybrid", source=source)


def _absolute(item: ManifestObject, folder: Path) -> ManifestObject:
    if not isinstance(item, ModelPair):
        return item
    target, draft = _located(item.spec.target, folder), _located(item.spec.draft, folder)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, target=target, draft=draft))


def _located(model: _Model, folder: Path) -> _Model:
    if model is None:
        return model
    given = {name: path for name in ("source", "tokenizer") if (path := getattr(model, name)) is not None}
    return msgspec.structs.replace(model, **{name: resolve_source(path, folder) for name, path in given.items()})


def policy_route(path: Path, manifest: Path, model: str | None) -> Route:
    """The route of the policy at `path`: for the ModelPair in the same file, else for the one in `manifest` that it
    names. `model` picks one of several.

    Raises:
        ManifestError: a file is invalid, or the policy does not fit the pair.
        CommandError: there is no policy for the model.
    """
    documents = read_documents(read_file(path), name=path.name)
    if not any(isinstance(value, dict) and value.get("kind") == "ModelPair" for value in documents):
        pairs = [item for item in parse(read_file(manifest), name=manifest.name) if isinstance(item, ModelPair)]
        documents = [*(_plain(pair, whole=True) for pair in pairs), *documents]
    table = compile_table(parse_documents(documents, name=path.name))
    routes = [route for route in table.routes.values() if route.policy and model in (None, route.model)]
    if not routes:
        raise CommandError(f"{path}: no SpeculationPolicy for the model {model!r}", exit_code=2)
    return routes[0]
