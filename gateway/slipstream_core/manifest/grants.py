"""Grants of the gateways' owner to the namespaces of ModelPairs.

All authors of pairs share the gateway's environment. The gateway sends an API key to the servers that a pair names, so
a namespace needs a grant for the key, and the grant lists the permitted hosts. No key is granted by default. Model
names are shared by all namespaces as well: a grant reserves the names with a prefix for some namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from slipstream_core.errors import CommandError, ManifestError
from slipstream_core.file_reading import read_regular
from slipstream_core.manifest.check import Problem, show
from slipstream_core.manifest.engines import ExternalEngine, VllmEngine
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.naming import child_name
from slipstream_core.manifest.parse import MAX_BYTES, read_documents
from slipstream_core.settings import Grants, KeyGrant

API_KEY_FIELD = "apiKeyEnv"
_ANY = "*"
_NAMES_HINT = "(--grants, modelNames)"
_OURS = "SLIPSTREAM_"


class KeyUse(msgspec.Struct, frozen=True):
    """One place of a spec that uses a key. `path` is the field that configures its servers."""

    path: str
    variable: str
    endpoints: tuple[str, ...]


def read_grants(path: Path) -> Grants:
    """The grants in the YAML file at `path`.

    Raises:
        CommandError: the file cannot be read, has unknown fields, or grants a secret of Slipstream's own.
    """
    try:
        [document] = read_documents(read_regular(path, max_bytes=MAX_BYTES + 1), name=path.name) or [{}]
        grants = msgspec.convert(document, Grants)
    except (OSError, ValueError, ManifestError) as exc:  # msgspec's errors are ValueErrors
        raise CommandError(f"--grants {path}: {exc}", exit_code=2) from exc
    if ours := [name for name in grants.api_keys if name.startswith(_OURS)]:
        raise CommandError(
            f"--grants {path}: apiKeys.{ours[0]}: this secret is Slipstream's own and cannot be granted", exit_code=2
        )
    return grants


def grant_problems(pair: ModelPair, grants: Grants) -> Iterator[Problem]:
    """The problems that keep `pair` from being served: a model name of other namespaces, or a key without a grant for
    its namespace and the hosts of its servers."""
    if not may_serve(pair.spec.model, pair.metadata.namespace, grants):
        message = f"{show(pair.spec.model)} is not granted to namespace {pair.metadata.namespace} {_NAMES_HINT}"
        yield Problem("spec.model", message)
    for use in key_uses(pair):
        grant = grants.api_keys.get(use.variable)
        field = f"{use.path}.{API_KEY_FIELD}"
        if grant is None or not {_ANY, pair.metadata.namespace} & {*grant.namespaces}:
            message = f"{show(use.variable)} is not granted to namespace {pair.metadata.namespace} (--grants, apiKeys)"
            yield Problem(field, message)
        elif foreign := [endpoint for endpoint in use.endpoints if not _is_host_granted(endpoint, grant)]:
            yield Problem(field, f"{show(use.variable)} is not granted to {show(foreign[0])} (--grants, apiKeys)")


def may_serve(model: str, namespace: str | None, grants: Grants) -> bool:
    """Whether pairs of `namespace` may serve the model name."""
    fitting = [grant for grant in grants.model_names if model.startswith(grant.prefix)]
    longest = max((len(grant.prefix) for grant in fitting), default=0)
    allowed = {name for grant in fitting if len(grant.prefix) == longest for name in grant.namespaces}
    return not fitting or bool({_ANY, namespace} & allowed)


def is_foreign_name(problem: Problem) -> bool:
    """Whether a problem from `grant_problems` concerns the model name."""
    return problem.message.endswith(_NAMES_HINT)


def key_uses(pair: ModelPair) -> Iterator[KeyUse]:
    """The places of a pair that name a variable with an API key."""
    engine = pair.spec.engine
    places = {}
    if isinstance(engine, VllmEngine):
        places = {"spec.engine": engine, "spec.engine.plain": engine.plain}
    elif isinstance(engine, ExternalEngine):
        places = {f"spec.engine.arms.{name}": getattr(engine.arms, name) for name in ("plain", "speculative")}
    for path, servers in places.items():
        if servers is not None and servers.api_key_env is not None:
            yield KeyUse(path, servers.api_key_env, servers.endpoints or (_own_service(pair),))


def _own_service(pair: ModelPair) -> str:
    """The address of the Service of servers that the operator runs, whose pods the namespace may change."""
    return f"http://{child_name(pair.metadata.name)}.{pair.metadata.namespace}.svc"


def _is_host_granted(endpoint: str, grant: KeyGrant) -> bool:
    """A granted host with a leading dot permits its subdomains. A trailing dot counts, because resolvers treat such a
    name differently."""
    host = urlsplit(endpoint).hostname or ""
    return any(host.endswith(granted) if granted.startswith(".") else host == granted for granted in grant.hosts)
