"""Options of `vllm serve` hold inside Triton."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from slipstream_tools.up.triton_server import TritonServer

from tests.contract.engine_client import CHAT, COMPLETION, Engine, Refused
from tests.support.polling import soon
from tests.vllm.triton.conftest import model_of, ready

pytestmark = pytest.mark.slow  # a server of its own
USER = [{"role": "user", "content": "status?"}]
TEMPLATE = "{{ opening }}{% for message in messages %} {{ message.content }}{% endfor %}"
OPENING = "Order 48213:"
QUEUED = 2


@pytest.fixture(scope="module")
def configured_triton(
    tmp_path_factory: pytest.TempPathFactory,
    write_vllm_repository: Callable[..., Any],
    run_triton: Callable[[Path, Path], TritonServer],
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("configured")
    options = {
        "--chat-template": TEMPLATE,
        "--default-chat-template-kwargs": json.dumps({"opening": OPENING}),
        "--api-key": "secret",
        "--max-num-queued-reqs": str(QUEUED),
    }
    arguments = [word for option in options.items() for word in option]
    with ready(run_triton(write_vllm_repository(folder, *arguments).models, folder)) as server:
        yield server


@pytest.fixture
async def configured_model(configured_triton: TritonServer) -> AsyncIterator[Engine]:
    async with model_of(configured_triton) as model:
        yield model


async def test_the_template_of_the_command_line_renders_chats(configured_model: Engine) -> None:
    """Also with a key among the options: Triton's clients have none."""
    request: dict[str, Any] = {"max_tokens": 12}
    chat = await configured_model.ask(CHAT, messages=USER, **request)
    text = await configured_model.ask(COMPLETION, prompt=f"{OPENING} status?", **request)
    assert chat.ids == text.ids
    assert chat.body["usage"]["prompt_tokens"] == text.body["usage"]["prompt_tokens"]


async def test_a_request_beyond_vllms_own_queue_is_refused(configured_model: Engine) -> None:
    endless: dict[str, Any] = {"path": COMPLETION, "prompt": "a", "ignore_eos": True, "max_tokens": 1500}
    async with AsyncExitStack() as streams:
        for _ in range(QUEUED):
            await anext(await streams.enter_async_context(configured_model.stream(**endless)))
        with pytest.raises(Refused, match="The engine is currently busy") as refused:
            await configured_model.ask(COMPLETION, prompt="a", max_tokens=1)
        assert refused.value.status in (429, 503)

    async def is_answered() -> bool:
        try:
            return bool((await configured_model.ask(COMPLETION, prompt="a", max_tokens=1)).ids)
        except Refused:
            return False

    await soon(is_answered, "an answer after the streams have ended")
