"""The embedded engine as a Triton model, loaded by `deploy/model_repository/slipstream`."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings
from slipstream_engine.triton_server.model import TritonModel, settings_from_parameters


class TritonPythonModel(TritonModel[EngineService]):
    """The class that Triton's stub loads."""

    def start_engine(self, name: str, parameters: Mapping[str, str]) -> EngineService:
        return EngineService.start(settings_from_parameters(parameters, EngineSettings))
