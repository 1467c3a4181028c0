"""Manifest objects compiled into one immutable snapshot, which the gateway swaps as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType

import msgspec

from slipstream_core.manifest.adapters import adapter_name, adapters_of, base_and_adapter, has_lora, name_on_servers
from slipstream_core.manifest.addresses import fits
from slipstream_core.manifest.capabilities import (
    FATAL_WITH_LORA,
    PLAIN_OPENAI,
    VLLM,
    Capabilities,
    capabilities_of,
    without,
)
from slipstream_core.manifest.dialects import DIALECTS
from slipstream_core.manifest.engines import (
    Adapter,
    DialectName,
    ExternalArm,
    SlipstreamEngine,
    VllmEngine,
    WireProtocol,
)
from slipstream_core.manifest.fingerprint import written_hash
from slipstream_core.manifest.model_pair import ModelPair
from slipstream_core.manifest.request_bounds import NO_BOUNDS, RequestBounds
from slipstream_core.manifest.rules import has_draft, pair_key_of
from slipstream_core.manifest.speculation_policy import ManifestObject, SpeculationPolicy
from slipstream_core.manifest.standing import PairStatus, Standing

LOCAL_TRITON = ("grpc://127.0.0.1:8001",)
LOCAL_VLLM = ("http://127.0.0.1:8000",)
LOCAL = LOCAL_TRITON + LOCAL_VLLM
_READY = PairStatus()


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's servers: their addresses, protocol and capabilities. `model` is the model name on these servers.

    `pool` identifies the servers in estimates and evidence: it is equal for both arms of a pair if they share servers.
    `drafts_per_request`: the servers accept a draft length with every request, else they use the one that they were
    started with. `own_engine`: Slipstream's engine decodes there, which is trusted without a check. `dialect` is
    that of the servers' OpenAI API. `caches_prefixes`: a server is faster with a prompt whose beginning it has seen.
    `scores_prompts`: servers may be requested to score the tokens of a prompt. `price_per_gpu_hour` is None if
    unknown.
    """

    protocol: WireProtocol
    endpoints: tuple[str, ...]
    model: str
    capabilities: Capabilities
    pool: str
    drafts_per_request: bool = True
    own_engine: bool = False
    dialect: DialectName = DialectName.OPENAI
    caches_prefixes: bool = False
    scores_prompts: bool = True
    api_key_env: str | None = None
    price_per_gpu_hour: float | None = None


class CanaryRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A new revision of a pair that is compared with the serving one: its `route`, and the `share` of the requests that
    it gets."""

    route: Route
    revision: str
    share: float


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """The data to serve one model name. `key` is that of the pair. `speculative` is None if the pair has no draft.
    `fallback`: servers without speculation for requests with a parameter that the servers of both arms refuse.

    `generation` is a hash of the pair and its policy as written: equal exactly when both are. `standing` limits the
    share of each class that may speculate; None, as with a file, sets no limit. `killed` is the reason why no request
    of this pair may speculate, beyond the kill switches of `pair` and `policy`. `canary` is the new revision that is
    compared with this one. `adapter` is the LoRA adapter of a route of `for_adapter`. `bounds` are those on requests.
    """

    model: str
    key: str
    pair: ModelPair
    policy: SpeculationPolicy | None
    plain: Backend
    speculative: Backend | None
    status: PairStatus
    generation: str
    standing: Standing | None = None
    killed: str | None = None
    fallback: Backend | None = None
    canary: CanaryRoute | None = None
    adapter: Adapter | None = None
    bounds: RequestBounds = NO_BOUNDS

    def for_adapter(self, name: str) -> Route | None:
        """The route of an adapter: the same servers, by the adapter's name there. None: the pair does not have it."""
        adapter = next((one for one in adapters_of(self.pair) if one.name == name), None)
        if adapter is None:
            return None
        on_servers = name_on_servers(self.pair, adapter)
        return msgspec.structs.replace(
            self,
            model=adapter_name(self.model, adapter),
            plain=msgspec.structs.replace(self.plain, model=on_servers),
            speculative=self.speculative and msgspec.structs.replace(self.speculative, model=on_servers),
            fallback=self.fallback and msgspec.structs.replace(self.fallback, model=on_servers),
            adapter=adapter,
            canary=None,
        )

    @property
    def servers(self) -> frozenset[str]:
        """The addresses of all servers that may get a request for this model."""
        backends = (self.plain, self.speculative, self.fallback)
        return frozenset(endpoint for backend in backends if backend is not None for endpoint in backend.endpoints)

    def plain_for(self, features: Set[str]) -> Backend:
        """The servers that decode a request with `features` plainly: those of the plain arm if they honour all
        features, or if no servers do."""
        if self.fallback is None or not self.plain.capabilities.missing(features):
            return self.plain
        return self.plain if self.fallback.capabilities.missing(features) else self.fallback


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Routes by clients' model name, in the order of the manifest. Relative sources start at `folder`; `generation` is
    a hash of all routes."""

    routes: Mapping[str, Route]
    generation: str
    folder: Path = Path()

    def find(self, model: str) -> Route | None:
        """The route of the clients' name `model`: that of an adapter of a pair, or of a pair. None: there is none."""
        base, name = base_and_adapter(model)
        of_base = self.routes.get(base)
        return (of_base and of_base.for_adapter(name)) or self.routes.get(model)

    def models(self) -> list[str]:
        """The names that `find` knows, each pair's followed by those of its adapters."""
        found: dict[str, None] = {}
        for model, route in self.routes.items():
            found |= dict.fromkeys((model, *(adapter_name(model, adapter) for adapter in adapters_of(route.pair))))
        return list(found)


def compile_table(
    objects: Sequence[ManifestObject],
    *,
    folder: Path = Path(),
    status: Mapping[str, PairStatus] | None = None,
    local_endpoints: Sequence[str] = LOCAL,
    standings: Mapping[str, Standing] | None = None,
    kills: Mapping[str, str] | None = None,
    endpoints: Mapping[str, tuple[str, ...]] | None = None,
) -> RoutingTable:
    """The routing table of parsed `objects` that are valid together. All mappings are by the pair's key.

    `status`: a pair without an entry is ready. `standings` and `kills`: see `Route`. `endpoints` are the addresses of
    pairs that name none; a pair without an entry has no servers yet. If `endpoints` is None, as on a laptop, they are
    those of `local_endpoints` that fit the pair's protocol.
    """
    policies = {pair_key_of(item): item for item in objects if isinstance(item, SpeculationPolicy)}
    routes = []
    for pair in (item for item in objects if isinstance(item, ModelPair)):
        key = pair.metadata.key
        route = compile_route(
            pair,
            policies.get(key),
            status=(status or {}).get(key, _READY),
            endpoints=local_endpoints if endpoints is None else endpoints.get(key, ()),
            standing=(standings or {}).get(key),
            killed=(kills or {}).get(key),
        )
        routes.append(route)
    return table_of(routes, folder=folder)


def compile_route(
    pair: ModelPair,
    policy: SpeculationPolicy | None,
    *,
    status: PairStatus = _READY,
    endpoints: Sequence[str] = LOCAL,
    standing: Standing | None = None,
    killed: str | None = None,
) -> Route:
    """The route of one pair. `endpoints` are its addresses if it names none, as far as they fit its protocol; for the
    other parameters see `Route`."""
    plain, speculative = _backends(pair, tuple(endpoints))
    return Route(
        model=pair.spec.model,
        key=pair.metadata.key,
        pair=pair,
        policy=policy,
        plain=plain,
        speculative=speculative,
        status=status,
        generation=written_hash(pair, policy),
        standing=standing,
        killed=killed,
        fallback=_fallback(pair),
        bounds=pair.spec.request_bounds or NO_BOUNDS,
    )


def table_of(routes: Iterable[Route], *, folder: Path = Path()) -> RoutingTable:
    """The routing table of `routes`, which serve different models."""
    by_model = {route.model: route for route in routes}
    generation = written_hash(*(route.generation for route in by_model.values()))
    return RoutingTable(routes=MappingProxyType(by_model), generation=generation, folder=folder)


def resolve_source(source: str, folder: Path) -> str:
    """`source` with a relative path made absolute; `embedded:...` stays unchanged."""
    return source if source.startswith("embedded:") else str((folder / source).resolve())


def triton_model_name(pair: ModelPair) -> str:
    """The name in Triton of the model of a pair that Triton serves."""
    engine = pair.spec.engine
    named = engine.triton_model if isinstance(engine, SlipstreamEngine | VllmEngine) else None
    return named or pair.metadata.name


def with_endpoints(route: Route, endpoints: tuple[str, ...]) -> Route:
    """`route` with both arms at other addresses."""
    plain = msgspec.structs.replace(route.plain, endpoints=endpoints)
    speculative = route.speculative
    if speculative is not None:
        speculative = msgspec.structs.replace(speculative, endpoints=endpoints)
    plain, speculative = _named(route.key, plain, speculative)
    return msgspec.structs.replace(route, plain=plain, speculative=speculative)


def _backends(pair: ModelPair, local_endpoints: tuple[str, ...]) -> tuple[Backend, Backend | None]:
    """The plain and the speculative arm. With Slipstream's engine and with vLLM both have the same servers."""
    engine = pair.spec.engine
    if isinstance(engine, VllmEngine):
        return _vllm_backends(pair, engine, local_endpoints)
    if isinstance(engine, SlipstreamEngine):
        plain_arm = ExternalArm(
            protocol=WireProtocol.TRITON,
            endpoints=engine.endpoints or fits(local_endpoints, WireProtocol.TRITON),
            model=triton_model_name(pair),
        )
        arm = plain_arm if has_draft(pair) else None
    else:
        plain_arm, arm = engine.arms.plain, engine.arms.speculative
    plain = _backend(plain_arm, pair, speculative=False)
    speculative = _backend(arm, pair, speculative=True) if arm is not None else None
    return _named(pair.metadata.key, plain, speculative)


def _vllm_backends(
    pair: ModelPair, engine: VllmEngine, local_endpoints: tuple[str, ...]
) -> tuple[Backend, Backend | None]:
    speculates = has_draft(pair)
    in_triton = engine.serving == "triton"
    protocol = WireProtocol.TRITON if in_triton else WireProtocol.OPENAI
    unsupported = {*engine.unsupported, *(FATAL_WITH_LORA if has_lora(pair) else ())}
    backend = Backend(
        protocol=protocol,
        endpoints=engine.endpoints or fits(local_endpoints, protocol),
        model=triton_model_name(pair) if in_triton else engine.model or pair.spec.model,
        capabilities=without(VLLM if speculates else PLAIN_OPENAI, unsupported),
        pool=pair.metadata.key,
        drafts_per_request=speculates,
        caches_prefixes=engine.prefix_caching,
        scores_prompts=not has_lora(pair),
        api_key_env=engine.api_key_env,
        price_per_gpu_hour=pair.spec.price_per_gpu_hour,
    )
    return backend, backend if speculates else None


def _fallback(pair: ModelPair) -> Backend | None:
    engine = pair.spec.engine
    servers = engine.plain if isinstance(engine, VllmEngine) else None
    if servers is None:
        return None
    return Backend(
        protocol=WireProtocol.OPENAI,
        endpoints=servers.endpoints,
        model=servers.model or pair.spec.model,
        capabilities=without(PLAIN_OPENAI, FATAL_WITH_LORA if has_lora(pair) else ()),
        pool=f"{pair.metadata.key}/fallback",
        drafts_per_request=False,
        caches_prefixes=True,
        api_key_env=servers.api_key_env,
        price_per_gpu_hour=pair.spec.price_per_gpu_hour,
    )


def _backend(arm: ExternalArm, pair: ModelPair, *, speculative: bool) -> Backend:
    price = arm.price_per_gpu_hour
    return Backend(
        protocol=arm.protocol,
        endpoints=arm.endpoints,
        model=arm.model,
        capabilities=capabilities_of(
            arm.protocol, speculative=speculative, dialect=arm.dialect, unsupported=arm.unsupported
        ),
        pool="",
        drafts_per_request=arm.protocol is WireProtocol.TRITON,
        own_engine=arm.protocol is WireProtocol.TRITON,
        scores_prompts=arm.protocol is not WireProtocol.TRITON,
        dialect=arm.dialect,
        caches_prefixes=DIALECTS[arm.dialect].caches_prefixes if arm.prefix_caching is None else arm.prefix_caching,
        api_key_env=arm.api_key_env,
        price_per_gpu_hour=pair.spec.price_per_gpu_hour if price is None else price,
    )


def _named(pair: str, plain: Backend, speculative: Backend | None) -> tuple[Backend, Backend | None]:
    """The arms with their pools' names: the pair's name, followed by the arm's if the servers differ."""
    if speculative is None or _servers(plain) == _servers(speculative):
        return _in_pool(plain, pair), speculative and _in_pool(speculative, pair)
    return _in_pool(plain, f"{pair}/plain"), _in_pool(speculative, f"{pair}/speculative")


def _servers(backend: Backend) -> tuple[WireProtocol, str, frozenset[str]]:
    return backend.protocol, backend.model, frozenset(backend.endpoints)


def _in_pool(backend: Backend, pool: str) -> Backend:
    return msgspec.structs.replace(backend, pool=pool)
