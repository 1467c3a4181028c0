"""The embedded engine as a model of Triton: what `deploy/model_repository/slipstream` loads."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream_engine.service import EngineService
from slipstream_engine.settings import EngineSettings
from slipstream_engine.triton_model import TritonModel, settings_from_parameters


class TritonPythonModel(TritonModel[EngineService]):
    """What Triton's stub looks for."""

    def start_engine(self, name: str, parameters: Mapping[str, str]) -> EngineService:
        return EngineService.start(settings_from_parameters(parameters, EngineSettings))
