"""Triton Inference Server over gRPC as an upstream: decoupled streams with the stub that tritonclient generates.

The stub is called directly rather than through the wrapper of `tritonclient.grpc.aio`: it takes one request without an
asynchronous generator around it, and does not build numpy arrays for tensors of a few bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import msgspec
from slipstream_core.errors import Incomparable, UpstreamFailed, UpstreamTimeout, UpstreamUnavailable
from slipstream_core.random_bytes import random_seed
from slipstream_core.types import GenerationRequest, Reason, Withheld, choice_seed
from tritonclient.grpc import service_pb2

from slipstream_gateway.upstreams.base import (
    ANY_DRAFT,
    Completion,
    Drafting,
    DraftStanding,
    Job,
    Tokens,
    TokenScore,
    has_relayed_features,
)
from slipstream_gateway.upstreams.endpoint_rules import EndpointRules
from slipstream_gateway.upstreams.scores import UNSCORED, score_by
from slipstream_gateway.upstreams.tls import Credentials
from slipstream_gateway.upstreams.triton_channel import TritonChannel
from slipstream_gateway.upstreams.triton_errors import rpc_error, triton_error
from slipstream_gateway.upstreams.triton_refusals import prompt_field
from slipstream_gateway.upstreams.triton_relay import RelayedStream, read_whole, relayed_request
from slipstream_gateway.upstreams.triton_streams import ChoiceStream, MergedStream, end_call, read_message
from slipstream_gateway.upstreams.triton_wire import (
    ENGINE_FACTS,
    STOP_DRAFTING,
    EngineFacts,
    control_request,
    infer_request,
    read_facts,
)

_PROBE_TIMEOUT_S = 2.0
_DEADLINE_GRACE_S = 0.5
_CONTROL_TIMEOUT_S = 3.0
_UNKNOWN_INPUT = "unexpected inference input"  # Triton's message for a tensor that the model does not have
_TOKEN_IDS = frozenset({"return_token_ids"})
_NO_DRAFTS = Drafting(
    withheld=Withheld(reason=Reason.ENGINE_CANNOT, detail="the server's engine runs without speculation")
)


class TritonUpstream:
    """One Triton server at `address` (`host:port` of its gRPC port) with Slipstream's model in it."""

    gives_token_ids = True
    sends_tokens = True
    answers_probes = True

    def __init__(
        self,
        address: str,
        *,
        model: str,
        connect_timeout_s: float,
        tls: Credentials | None = None,
        rules: EndpointRules | None = None,
    ) -> None:
        self._model = model
        self._stops = 0
        self._facts: EngineFacts | None = None
        self._channel = TritonChannel(
            address, connect_timeout_s=connect_timeout_s, tls=tls, rules=rules or EndpointRules()
        )

    @property
    def drafting(self) -> Drafting:
        """Any draft length until a probe has completed; engines cap drafts at their own maximum."""
        if self._facts is None:
            return ANY_DRAFT
        if self._facts.max_draft_length == 0:
            return _NO_DRAFTS
        facts = self._facts
        return Drafting(
            longest=facts.max_draft_length,
            identity=str(self._channel.losses),
            adaptive=facts.adaptive,
            seed_equality=bool(facts.fingerprint),
        )

    @property
    def fingerprint(self) -> str:
        return self._facts.fingerprint if self._facts is not None else ""

    @property
    def draft_standings(self) -> tuple[DraftStanding, ...]:
        return self._facts.draft_standings if self._facts is not None else ()

    async def complete(self, job: Job) -> Completion:
        if self._is_relayed(job.request):
            return await self._relay_whole(job)
        stream = await self._start(job)
        try:
            parts: list[list[Tokens]] = [[] for _ in range(job.request.prompts * job.request.n)]
            while (piece := await stream.next()) is not None:
                parts[piece.index].append(piece)
            return Completion(pieces=tuple(map(_joined, parts)), usage=stream.usage)
        finally:
            await stream.aclose()

    async def open(self, job: Job) -> MergedStream | ChoiceStream | RelayedStream:
        relayed = self._is_relayed(job.request)
        stream = RelayedStream(await self._relay(job), job) if relayed else await self._start(job)
        try:
            await stream.prefetch()
        except BaseException:  # however the attempt ends, the work must be cancelled
            await stream.aclose()
            raise
        return stream

    async def probe(self) -> None:
        """A model whose engine has ended is not ready, whatever Triton reports: the model's own facts decide."""
        await self._channel.connected()
        request = service_pb2.ModelReadyRequest(name=self._model)
        try:
            answer = await self._channel.stub.ModelReady(request, timeout=_PROBE_TIMEOUT_S)
        except grpc.RpcError as exc:
            raise rpc_error(exc) from None
        if not answer.ready:
            raise UpstreamUnavailable(
                "The inference server does not have the model, or it is not ready.", detail=self._model
            )
        self._facts = await self._fetch_facts()

    async def models(self) -> Mapping[str, int | None]:
        if self._facts is None:
            self._facts = await self._fetch_facts()
        return {self._model: self._facts.context_tokens if self._facts is not None else None}

    async def stop_drafting(self) -> None:
        self._stops += 1
        error = (await self._control(STOP_DRAFTING, timeout_s=_CONTROL_TIMEOUT_S)).error_message
        if _UNKNOWN_INPUT in error:
            raise UpstreamFailed("The inference server failed.", detail=f"{_UNKNOWN_INPUT} '{STOP_DRAFTING}'")
        if error:
            raise triton_error(error)

    async def score(
        self,
        prompt_token_ids: Sequence[int],
        answer_token_ids: Sequence[int],
        *,
        model: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> tuple[TokenScore, ...]:
        """By an engine that answers OpenAI requests; the tensors alone provide no scores."""
        if self._facts is None:
            self._facts = await self._fetch_facts()
        if self._facts is None or not self._facts.openai:
            raise Incomparable(UNSCORED)
        return await score_by(self.complete, prompt_token_ids, answer_token_ids, model=model, headers=headers)

    async def aclose(self) -> None:
        await self._channel.aclose()

    def _is_relayed(self, request: GenerationRequest) -> bool:
        """Whether `request` is relayed unchanged. A check requests token ids; tensors have those of the answer, which
        suffices for an engine without OpenAI requests."""
        tensors_only = self._facts is not None and not self._facts.openai
        if tensors_only and request.features == _TOKEN_IDS:
            return False
        if request.prompts > 1 and self._facts is not None and self._facts.openai:
            return True  # one call in place of one for each prompt
        return has_relayed_features(request)

    async def _start(self, job: Job) -> MergedStream | ChoiceStream:
        draft_length = await self._connect(job)
        request, seed = job.request, job.request.seed
        if seed is None:
            seed = random_seed()
        choices = []
        for index, (number, one, choice) in enumerate(_parts(request)):
            message = infer_request(
                one,
                model=job.model,
                draft_length=draft_length,
                request_id=f"{job.request_id}-{index}" if index else job.request_id,
                seed=choice_seed(seed, choice),
                adaptive=job.adaptive and draft_length > 0,
                margins=job.margins,
                prompt_ids=job.token_ids and self._facts is not None and self._facts.prompt_ids,
                group=job.request_class if self._facts is not None and self._facts.groups else "",
                resume_ids=job.committed.token_ids if job.committed is not None else (),
            )
            field = prompt_field(one) if request.prompts == 1 else f"prompt[{number}]"
            choices.append(ChoiceStream(self._call(message, _timeout_s(job)), index, one, field))
        return choices[0] if len(choices) == 1 else MergedStream(choices, each=request.n)

    async def _connect(self, job: Job) -> int:
        """Waits for a connection, then returns the draft length of `job`: a control message that waited for the same
        connection would otherwise miss it."""
        stops = self._stops
        await self._channel.connected()
        return job.draft_length if stops == self._stops else 0

    async def _relay(self, job: Job) -> Any:
        """The call with the unchanged `job`."""
        job = msgspec.structs.replace(job, draft_length=await self._connect(job))
        return self._call(relayed_request(job, request_id=job.request_id), _timeout_s(job))

    async def _relay_whole(self, job: Job) -> Completion:
        call, ended = await self._relay(job), False
        try:
            completion = await read_whole(call, job)
            ended = True
        finally:
            end_call(call, ended=ended)
        return completion

    async def _fetch_facts(self) -> EngineFacts | None:
        """None for a model of an older version, which has no such message."""
        answer = await self._control(ENGINE_FACTS, timeout_s=_PROBE_TIMEOUT_S)
        if _UNKNOWN_INPUT in answer.error_message:
            return None
        if answer.error_message:
            raise triton_error(answer.error_message)
        return read_facts(answer.infer_response)

    async def _control(self, name: str, *, timeout_s: float) -> service_pb2.ModelStreamInferResponse:
        """The response to a control message, which may be an error."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._channel.connected()
                call, answer = self._call(control_request(self._model, name), None), None
                try:
                    answer = await read_message(call)
                finally:
                    end_call(call, ended=answer is not None)
        except TimeoutError as exc:
            raise UpstreamTimeout(f"The inference server did not respond within {timeout_s:g} s.") from exc
        return answer

    def _call(self, message: service_pb2.ModelInferRequest, timeout_s: float | None) -> Any:
        return self._channel.stub.ModelStreamInfer(_one(message), timeout=timeout_s)


def _parts(request: GenerationRequest) -> Iterator[tuple[int, GenerationRequest, int]]:
    """The requests for single answers: the number of the prompt, the request for it, and the number of the choice."""
    if not request.further_prompts:
        for choice in range(request.n):
            yield 0, request, choice
        return
    for number, prompt in enumerate((request.prompt, *request.further_prompts)):
        one = msgspec.structs.replace(request, prompt=prompt, further_prompts=())
        for choice in range(request.n):
            yield number, one, choice


def _timeout_s(job: Job) -> float | None:
    """The timeout of the call, None without a limit. It is slightly longer than the client's deadline: the gateway then
    cancels first and knows the reason, and the server still stops its work if the gateway is gone."""
    return None if job.deadline_s is None else max(job.deadline_s - time.monotonic(), 0.0) + _DEADLINE_GRACE_S


def _joined(parts: Sequence[Tokens]) -> Tokens:
    """One answer of its `parts`, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    return Tokens(
        index=parts[-1].index,
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=parts[-1].finish_reason,
        margins=tuple(margin for part in parts for margin in part.margins),
        prompt_token_ids=parts[0].prompt_token_ids,
    )


async def _one(message: service_pb2.ModelInferRequest) -> Any:
    yield message
