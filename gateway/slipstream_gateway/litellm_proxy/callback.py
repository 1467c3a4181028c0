"""A callback of LiteLLM's proxy: sets draft length and class of each request for vLLM, and learns from the answer.

https://docs.litellm.ai/docs/proxy/call_hooks
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from slipstream_gateway.litellm_proxy.answers import is_cut, times_of, usage_of
from slipstream_gateway.litellm_proxy.proxy_requests import PLAIN, ProxyRequests
from slipstream_gateway.upstreams.engine_wire import XARGS

_CALL_TYPES = ("acompletion", "atext_completion")
_log = logging.getLogger(__name__)


class SlipstreamCallback(CustomLogger):
    """Decides requests for the models of `manifest`. No error of it fails a request: the request is sent plainly, or as
    LiteLLM has it, and the first error of each kind is logged. LiteLLM calls only hooks that the class of a callback
    defines itself, so that a subclass without them has no effect."""

    def __init__(self, manifest: str | Path) -> None:
        """Raises `ManifestError` if the manifest is invalid."""
        super().__init__()
        self._requests = ProxyRequests(Path(manifest))
        self._logged: set[type[Exception]] = set()

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        with self._never_failing("decided"):
            await self._requests.started()
            own = data.get(XARGS) or {}
            if call_type in _CALL_TYPES and self._requests.serves(data.get("model")) and isinstance(own, Mapping):
                data[XARGS] = {**own, **PLAIN}
                data[XARGS] = {**own, **self._decide({**data, XARGS: own}, user_api_key_dict)}
        return data

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        with self._never_failing("learnt from"):
            request_id = kwargs["litellm_call_id"]
            if kwargs.get("cache_hit"):
                self._requests.drop(request_id)
                return
            usage = usage_of(response_obj, draft_length=self._requests.draft_length(request_id))
            times = times_of(kwargs, start_time, end_time, output_tokens=usage.output_tokens)
            self._requests.finish(request_id, usage, times, cut=is_cut(response_obj))

    async def async_log_failure_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        with self._never_failing("ended"):
            self._requests.drop(kwargs["litellm_call_id"])

    def _decide(self, data: Mapping[str, Any], key: Any) -> Mapping[str, int | str]:
        return self._requests.begin(
            data,
            data["proxy_server_request"]["headers"],
            owner=data["litellm_logging_obj"],
            request_id=data["litellm_call_id"],
            key_id=key.token or "",
        )

    @contextlib.contextmanager
    def _never_failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # a request must not fail because of its draft length
            if type(exc) not in self._logged:
                self._logged.add(type(exc))
                _log.exception("a request could not be %s; other errors of this kind are not logged", what)
