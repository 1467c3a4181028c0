"""vLLM's `AsyncLLM` as an engine behind Triton's tensors, with an event loop in its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.sampling_params import RequestOutputKind, SamplingParams

from slipstream_engine.contract.protocol import EngineFacts, OnChunk, OnReply, OpenAiRequest
from slipstream_engine.contract.request_checks import check_request
from slipstream_engine.contract.types import GenerationRequest
from slipstream_engine.errors import CheckpointError, EngineFailedError, OverloadedError
from slipstream_engine.vllm_engine import late_requests
from slipstream_engine.vllm_engine.answer import AnswerWriter
from slipstream_engine.vllm_engine.engine import VERSION, running_engine
from slipstream_engine.vllm_engine.late_requests import DRAFT_LENGTH
from slipstream_engine.vllm_engine.requests import DEAD, Requests
from slipstream_engine.vllm_engine.resumed_text import ResumedText
from slipstream_engine.vllm_engine.settings import VllmSettings, command_line
from slipstream_engine.vllm_engine.tokenizer import VllmTokenizer

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_STOP_DRAFTING, _LIMIT = "slipstream_stop_drafting", "slipstream_limit"  # the plugin's engine utilities
_NO_SEED, _ITS_SEED = -1, 2**63 - 1  # in vLLM -1 means no seed, so it is replaced by a fixed seed
_END_S = 10.0
_log = logging.getLogger(__name__)


class VllmService:
    """One vLLM engine. The `on_chunk` and `on_reply` callbacks run on its event loop's thread and must not block."""

    def __init__(self, settings: VllmSettings, name: str) -> None:
        self._settings = settings
        self._arguments = command_line(settings, name)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._active: set[str] = set()
        self._stops = 0
        self._closing = False
        self._loaded: Future[None] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="slipstream-vllm", daemon=True)

    @classmethod
    def start(cls, settings: VllmSettings, name: str) -> VllmService:
        """Load vLLM and start its thread. `name` is the model name in OpenAI requests.

        Raises:
            CheckpointError: a folder is missing, vLLM rejects an option or cannot load, or the plugin is missing.
        """
        service = cls(settings, name)
        service._thread.start()
        service._loaded.result()
        return service

    @property
    def tokenizer(self) -> VllmTokenizer:
        return self._tokenizer

    @property
    def context_tokens(self) -> int:
        """Maximum number of prompt and output tokens of a request."""
        return int(self._llm.model_config.max_model_len)

    @property
    def stops(self) -> int:
        """Number of calls of `stop_drafting`."""
        return self._stops

    def facts(self) -> EngineFacts:
        """Name and capabilities of this engine. Raises `EngineFailedError` if it has ended."""
        self._check_alive()
        return EngineFacts(
            engine="vllm",
            version=VERSION,
            max_draft_length=self._max_draft_length,
            context_tokens=self.context_tokens,
            openai=True,
            resumes_sampled=False,  # vLLM's random number generator restarts with each request
        )

    def submit(self, request: GenerationRequest, on_chunk: OnChunk, *, stops: int | None = None) -> None:
        """Queue a request; see `ServedEngine.submit`."""
        check_request(request, context_tokens=self.context_tokens, vocabulary=self._vocabulary)
        params, resumed = self._params(request, request.stop), None
        if request.resume_ids:
            resumed = ResumedText(request, self._tokenizer, params)
            params = self._params(request, stop=())  # vLLM would search only the new tokens
            params.detokenize = False
        token_ids = [*request.prompt_ids, *request.resume_ids]
        with self._lock:
            stopped = stops is not None and stops != self._stops
            length = 0 if stopped else min(request.draft_tokens, self._max_draft_length)
            if self._max_draft_length:
                params.extra_args = {DRAFT_LENGTH: length}
            writer = AnswerWriter(request, resumed, drafts=length > 0)
            self._take_in(request.request_id)
            begin = partial(self._requests.answer, request.request_id, token_ids, params, writer, on_chunk)
            self._loop.call_soon_threadsafe(begin)

    def ask(self, request_id: str, request: OpenAiRequest, on_reply: OnReply, *, stops: int | None = None) -> None:
        """Answer an OpenAI request; see `OpenAiEngine.ask`."""
        with self._lock:
            self._take_in(request_id)
            self._loop.call_soon_threadsafe(self._requests.call, request_id, request, on_reply, stops)

    def cancel(self, request_id: str) -> None:
        """Abort a request. Unknown ids are ignored, because the request may have just ended."""
        self._loop.call_soon_threadsafe(self._requests.cancel, request_id)

    def stop_drafting(self) -> None:
        """Turn drafting off for all running and waiting requests from their next step on. Returns at once."""
        with self._lock:
            self._stops += 1
            if self._max_draft_length:
                asyncio.run_coroutine_threadsafe(self._stop_drafting(), self._loop)

    def close(self) -> None:
        """Abort running requests, then end vLLM's processes and the thread."""
        with self._lock:
            self._closing = True
        asyncio.run_coroutine_threadsafe(self._requests.end_all(_END_S), self._loop).result()
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _check_alive(self) -> None:
        if self._llm.errored:
            raise EngineFailedError(DEAD)

    def _take_in(self, request_id: str) -> None:
        """Register one more request. The caller holds the lock."""
        self._check_alive()
        if self._closing:
            raise OverloadedError("the engine is shutting down")
        if len(self._active) >= self._capacity:
            raise OverloadedError(f"{len(self._active)} requests are running or waiting already")
        self._active.add(request_id)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._active.discard(request_id)

    def _params(self, request: GenerationRequest, stop: Sequence[str]) -> SamplingParams:
        given, sampling = len(request.prompt_ids) + len(request.resume_ids), request.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=_seed(sampling.seed) if sampling.temperature > 0 else None,
            max_tokens=min(request.max_tokens - len(request.resume_ids), self.context_tokens - given),
            stop=list(stop),
            logprobs=2 if request.margins else None,
            output_kind=RequestOutputKind.DELTA,
        )

    async def _stop_drafting(self) -> None:
        try:
            await self._llm.engine_core.call_utility_async(_STOP_DRAFTING)
        except Exception:  # no caller waits for the result; requests on a failed engine end by themselves
            _log.exception("vLLM did not stop drafting")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as exc:  # top of the thread: pass the error to the waiting caller
            if self._loaded.done():
                _log.exception("shutting vLLM down failed")
            else:
                self._loaded.set_exception(exc if isinstance(exc, CheckpointError) else _load_failure(exc))

    async def _serve(self) -> None:
        """Load vLLM, keep it until `close`, and always shut it down."""
        async with running_engine(self._arguments) as (llm, app):
            await self._adopt(llm, app)
            self._loaded.set_result(None)
            await self._ended.wait()

    async def _adopt(self, llm: AsyncLLM, app: Any) -> None:
        self._llm = llm
        self._tokenizer = VllmTokenizer(llm, app)
        self._vocabulary = self._llm.model_config.get_vocab_size()
        self._requests = Requests(self._llm, app, self._forget)
        config = self._llm.vllm_config
        self._capacity = config.scheduler_config.max_num_seqs + self._settings.max_waiting
        speculative = config.speculative_config
        self._max_draft_length = 0 if speculative is None else speculative.num_speculative_tokens
        if self._max_draft_length:
            await self._llm.engine_core.call_utility_async(_LIMIT, "get")  # fails without the plugin
            late_requests.install(llm, lambda: self._stops)


def _seed(seed: int) -> int:
    return _ITS_SEED if seed == _NO_SEED else seed


def _load_failure(exc: BaseException) -> CheckpointError:
    return CheckpointError(f"vLLM cannot load the model: {exc!r}")
