"""The requests of a LiteLLM proxy: each is decided as in the gateway, and its answer is learnt from.

The manifest, its kill switches and the state of the servers are those of the gateway. LiteLLM chooses the server, so
the load of a decision is that of the least busy one.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from slipstream_core.environment import secret
from slipstream_core.errors import RequestError
from slipstream_core.manifest import Route, WireProtocol, load_file
from slipstream_core.manifest.kill_file import KillFile, kills_beside
from slipstream_core.parameter_names import KNOWN_PARAMETERS
from slipstream_core.settings import GatewaySettings, TlsSettings
from slipstream_core.types import Caller, GenerationRequest

from slipstream_gateway.api.parse import parse_request
from slipstream_gateway.api.request import RequestOverrides
from slipstream_gateway.decide.classify import LinearClassifier, default_model
from slipstream_gateway.decide.estimate import ArmComparisons, Learner
from slipstream_gateway.decide.route import NO_DRAWS, fresh_draws, opts_out
from slipstream_gateway.fleet.fleet import Fleet
from slipstream_gateway.fleet.snapshot import ReplicaKey, ServedRoute
from slipstream_gateway.request.candidates import Attempt, Candidate
from slipstream_gateway.request.decider import Decider, Judged
from slipstream_gateway.request.observations import MemoryStore, Outcomes, PendingObservation, Times
from slipstream_gateway.sources.file import FileSource
from slipstream_gateway.upstreams.base import Upstream, Usage
from slipstream_gateway.upstreams.engine_server import EngineUpstream
from slipstream_gateway.upstreams.engine_wire import DRAFT_LENGTH, own_fields
from slipstream_gateway.upstreams.http_transport import HttpTransport
from slipstream_gateway.upstreams.refused_upstream import RefusedUpstream
from slipstream_gateway.upstreams.tls import read_credentials

PLAIN: Mapping[str, int | str] = {DRAFT_LENGTH: 0}
"""The fields of a request that is not decided. Without a length, the plugin would draft as much as it may."""
_NOT_READ = "metadata"  # LiteLLM puts objects of its own there
_HEADERS = ("x-slipstream-mode", "x-slipstream-draft-length", "x-slipstream-learn")
_SETTINGS = GatewaySettings()


class _Running(NamedTuple):
    """A request at its server. `lost` ends it when LiteLLM forgets the request without reporting an end."""

    attempt: Attempt
    pending: PendingObservation | None
    lost: weakref.finalize[Any, Any]


class ProxyRequests:
    """The running requests of one process, with the servers of the manifest and what was learnt from answers."""

    def __init__(self, manifest: Path) -> None:
        """Raises `ManifestError` if the manifest is invalid."""
        load_file(manifest)
        self._fleet = Fleet(_connect, clock=time.monotonic)
        self._source = FileSource(_SETTINGS, manifest, self._fleet, KillFile(kills_beside(manifest, None)))
        learner = Learner()
        self._decider = Decider(classifier=LinearClassifier(default_model()), learner=learner)
        self._outcomes = Outcomes(learner=learner, evidence=ArmComparisons(), store=MemoryStore())
        self._running: dict[str, _Running] = {}
        self._started: asyncio.Task[FileSource] | None = None

    async def started(self) -> None:
        """Starts to follow manifest and servers, on the first call."""
        if self._started is None:
            self._started = asyncio.create_task(self._source.__aenter__())
        await asyncio.shield(self._started)

    async def aclose(self) -> None:
        """Ends what `started` has started. LiteLLM ends no callback: there, the end of the process does it."""
        await self._source.__aexit__(None, None, None)
        await self._fleet.aclose()

    def serves(self, model: object) -> bool:
        """Whether the manifest has vLLM with the plugin for the model with this name."""
        served = self._fleet.current.by_name.get(model) if isinstance(model, str) else None
        return served is not None and _takes_draft_lengths(served.route)

    def begin(
        self, fields: Mapping[str, Any], headers: Mapping[str, str], *, owner: object, request_id: str, key_id: str
    ) -> Mapping[str, int | str]:
        """Decides the request with these `fields` and `headers`, and returns its fields of `vllm_xargs`. `owner` lives
        as long as the request runs."""
        served = self._fleet.current.by_name[fields["model"]]
        try:
            request = _parsed(fields, headers)
            judged = self._decider.decide(
                request,
                served,
                caller=Caller(key_id=key_id),
                draws=NO_DRAWS if opts_out(request, served.route) else fresh_draws(),
                pressure=0.0,
            )
        except RequestError:
            return PLAIN  # the server answers what the gateway would refuse
        self._run(request, served, judged, owner=owner, request_id=request_id)
        decision = judged.decision
        # LiteLLM chooses the server, so that each of them must know the field.
        protected = decision.protected and all(one.upstream.drafting.protects for one in served.plain.replicas)
        return own_fields(
            decision.draft_length, decision.request_class, adaptive=decision.adaptive, protected=protected
        )

    def draft_length(self, request_id: str) -> int:
        """The draft length of a running request; 0 if it is unknown."""
        running = self._running.get(request_id)
        return 0 if running is None else running.attempt.decision.draft_length

    def finish(self, request_id: str, usage: Usage, times: Times, *, cut: bool) -> None:
        """Learns from a whole answer, by the rules of `call.observe`. `cut`: it ended at its length limit."""
        running = self.drop(request_id)
        if running is None or running.pending is None:
            return
        attempt, decision = running.attempt, running.attempt.decision
        if not usage.exact or attempt.was_stopped or not (usage.counted or decision.draft_length == 0):
            return
        running.pending.record(
            decision=decision,
            backend=attempt.backend,
            status="ok",
            usage=usage,
            times=times,
            batch=attempt.batch,
            cut=cut,
        )

    def drop(self, request_id: str) -> _Running | None:
        """Ends a request. Returns it, None if it has ended already."""
        running = self._running.pop(request_id, None)
        if running is not None:
            running.lost.detach()
            running.attempt.release()
        return running

    def _run(
        self, request: GenerationRequest, served: ServedRoute, judged: Judged, *, owner: object, request_id: str
    ) -> None:
        replica = served.plain.least_busy(adapter=served.adapter)
        if replica is None:
            return
        self.drop(request_id)
        pending = None
        if request.choices == 1 and not opts_out(request, served.route):
            pending = PendingObservation(judged.subject, judged.profile.prompt_tokens, self._outcomes, one_pool=True)
        # The last reference may be gone in another thread.
        later = asyncio.get_running_loop().call_soon_threadsafe
        lost = weakref.finalize(owner, later, self.drop, request_id)
        lost.atexit = False
        attempt = Attempt(Candidate(replica, served, served.route.plain, judged.decision))
        self._running[request_id] = _Running(attempt, pending, lost)


def _parsed(fields: Mapping[str, Any], headers: Mapping[str, str]) -> GenerationRequest:
    """The request as LiteLLM has it now. LiteLLM's own fields do not count."""
    body = {name: fields[name] for name in fields.keys() & KNOWN_PARAMETERS if name != _NOT_READ}
    return parse_request(
        msgspec.json.encode(body), RequestOverrides(*map(headers.get, _HEADERS)), find_restricted=False
    )


def _takes_draft_lengths(route: Route) -> bool:
    backend = route.speculative
    return backend is not None and backend.drafts_per_request and backend.protocol is WireProtocol.OPENAI


def _connect(key: ReplicaKey) -> Upstream:
    """A client for the plugin's routes; LiteLLM sends the requests."""
    if not key.drafts_per_request or key.protocol is not WireProtocol.OPENAI:
        return RefusedUpstream("Requests to this server are not decided.", reason="it is no vLLM with the plugin")
    tls = read_credentials(TlsSettings()).context if key.endpoint.startswith("https://") else None
    transport = HttpTransport(key.endpoint, connect_timeout_s=_SETTINGS.deadlines.connect_s, tls=tls)
    return EngineUpstream(transport, api_key=None if key.api_key_env is None else secret(key.api_key_env))
