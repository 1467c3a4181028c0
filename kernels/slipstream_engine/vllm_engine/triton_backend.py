"""vLLM as a Triton model, loaded by `deploy/model_repository/slipstream_vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from slipstream_engine.contract.protocol import OpenAiRequest
from slipstream_engine.triton_server.answer import TritonAnswer
from slipstream_engine.triton_server.model import TritonModel, settings_from_parameters
from slipstream_engine.triton_server.response_sender import PendingItems, merge_replies
from slipstream_engine.vllm_engine.compatibility import check_version
from slipstream_engine.vllm_engine.process import prepare_process
from slipstream_engine.vllm_engine.settings import VllmSettings

if TYPE_CHECKING:
    from slipstream_engine.vllm_engine.service import VllmService


class TritonPythonModel(TritonModel["VllmService"]):
    """The class that Triton's stub loads."""

    def prepare(self) -> None:
        prepare_process()

    def start_engine(self, name: str, parameters: Mapping[str, str]) -> VllmService:
        settings = settings_from_parameters(parameters, VllmSettings)
        check_version()
        from slipstream_engine.vllm_engine.service import VllmService  # imports vLLM, after `prepare`

        return VllmService.start(settings, name)

    def ask_openai(self, answer: TritonAnswer, request: OpenAiRequest) -> None:
        pending = PendingItems(answer, merge_replies, stream=True)
        self.engine.ask(answer.request_id, request, partial(self.responses.put, pending), stops=answer.stops)
