"""The requests in vLLM's event loop, each with a task and a way to cancel it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError

from slipstream_engine.contract.protocol import OnChunk, OnReply, OpenAiRequest, Reply
from slipstream_engine.vllm_engine.answer import AnswerWriter
from slipstream_engine.vllm_engine.late_requests import STOPS_AT_ARRIVAL
from slipstream_engine.vllm_engine.openai_app import OpenAiCall

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

DEAD = "vLLM's engine process has ended; the server's log has the reason"
_FAILED = b'{"error": {"message": "The engine failed.", "type": "InternalServerError", "param": null, "code": 500}}'
_log = logging.getLogger(__name__)


class Requests:
    """All requests of one engine, by id. The methods must run on the event loop's thread.

    `on_end(request_id)` is called after a request's last chunk or reply.
    """

    def __init__(self, llm: AsyncLLM, app: Any, on_end: Callable[[str], None]) -> None:
        self._llm = llm
        self._app = app
        self._on_end = on_end
        self._running: dict[str, tuple[asyncio.Task[None], Callable[[], object]]] = {}

    def answer(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        writer: AnswerWriter,
        on_chunk: OnChunk,
    ) -> None:
        """Generate after `token_ids`. `on_chunk` receives the chunks of `writer`."""
        task = asyncio.get_running_loop().create_task(self._generate(request_id, token_ids, params, writer, on_chunk))

        def deliver_cancelled(done: asyncio.Task[None]) -> None:
            if done.cancelled():  # not in the task, because a task cancelled before its start runs no code
                on_chunk(writer.cancelled())

        task.add_done_callback(deliver_cancelled)
        self._keep(request_id, task, task.cancel)

    def call(self, request_id: str, request: OpenAiRequest, on_reply: OnReply, stops: int | None) -> None:
        """Answer an OpenAI request with vLLM's application. `on_reply` receives the replies. `stops` is as in
        `submit`."""
        call = OpenAiCall(self._app, request, on_reply)
        task = asyncio.get_running_loop().create_task(_run_call(call, on_reply, stops))
        self._keep(request_id, task, call.cancel)

    def cancel(self, request_id: str) -> None:
        """Cancel a request, if it is still running."""
        if request_id in self._running:
            self._running[request_id][1]()

    async def end_all(self, timeout_s: float) -> None:
        """Cancel all requests and wait for their end, at most `timeout_s`."""
        for request_id in tuple(self._running):
            self.cancel(request_id)
        if tasks := [task for task, _ in self._running.values()]:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _keep(self, request_id: str, task: asyncio.Task[None], cancel: Callable[[], object]) -> None:
        def forget(_: asyncio.Task[None]) -> None:
            del self._running[request_id]
            self._on_end(request_id)

        self._running[request_id] = (task, cancel)
        task.add_done_callback(forget)

    async def _generate(
        self,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        writer: AnswerWriter,
        on_chunk: OnChunk,
    ) -> None:
        try:
            async with aclosing(self._llm.generate(tokens_input(token_ids), params, request_id)) as outputs:
                async for output in outputs:
                    chunk = writer.take(output.outputs[0])
                    on_chunk(chunk)
                    if chunk.last:
                        return
        except EngineDeadError:
            on_chunk(writer.failed(DEAD))
        except VLLMClientError as exc:
            on_chunk(writer.failed(str(exc), "invalid_request"))
        except GracefulHTTPError as exc:  # vLLM's own limits: --max-num-queued-reqs, --max-num-queued-tokens
            on_chunk(writer.failed(exc.message, "overloaded"))
        except Exception as exc:  # top of a request: any error becomes its answer and must not affect others
            on_chunk(writer.failed(repr(exc.__cause__ or exc)))


async def _run_call(call: OpenAiCall, on_reply: OnReply, stops: int | None) -> None:
    STOPS_AT_ARRIVAL.set(stops)
    try:
        await call.run()
    except Exception:  # top of a request, as above; the application has logged the reason
        _log.exception("vLLM's server failed on a request")
    finally:
        if not call.ended:  # an interrupted stream has no [DONE]
            data = b"" if call.status else _FAILED
            on_reply(Reply(status=call.status or 500, data=data, last=True))
