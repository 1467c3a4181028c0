"""Options of `vllm serve` inside Triton: tensors and relayed requests follow the same ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.up.triton_server import TritonServer

from tests.support.polling import soon
from tests.support.triton_client import TritonModel
from tests.vllm.triton.conftest import model_of, ready

pytestmark = pytest.mark.slow  # a server of its own
USER = [{"role": "user", "content": "status?"}]
TEMPLATE = "{{ opening }}{% for message in messages %} {{ message.content }}{% endfor %}"
OPENING = "Order 48213:"
SECOND_EOS = 2000
QUEUED = 2


@pytest.fixture(scope="module")
def configured_triton(
    tmp_path_factory: pytest.TempPathFactory,
    write_vllm_repository: Callable[..., Any],
    run_triton: Callable[[Path, Path], TritonServer],
) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("configured")
    generation = folder / "generation"
    generation.mkdir()
    known = json.loads((TARGET_DIR / "generation_config.json").read_text())
    (generation / "generation_config.json").write_text(json.dumps({**known, "eos_token_id": [4, SECOND_EOS]}))
    options = {
        "--chat-template": TEMPLATE,
        "--default-chat-template-kwargs": json.dumps({"opening": OPENING}),
        "--generation-config": str(generation),
        "--api-key": "secret",
        "--max-num-queued-reqs": str(QUEUED),
    }
    arguments = [word for option in options.items() for word in option]
    with ready(run_triton(write_vllm_repository(folder, *arguments).models, folder)) as server:
        yield server


@pytest.fixture
async def configured_model(configured_triton: TritonServer) -> AsyncIterator[TritonModel]:
    async with model_of(configured_triton) as model:
        yield model


async def test_tensors_and_relayed_requests_make_one_prompt_of_a_chat(configured_model: TritonModel) -> None:
    """Also with a key among the options: Triton's clients have none."""
    by_tensors = await configured_model.generate(messages=USER, temperature=0.0, max_tokens=12)
    by_text = await configured_model.generate(text_input=f"{OPENING} status?", temperature=0.0, max_tokens=12)
    relayed = await _chat(configured_model, {"messages": USER, "temperature": 0, "max_tokens": 12})
    assert by_tensors.error is None
    assert by_tensors.token_ids == by_text.token_ids
    assert by_tensors.last.prompt_tokens == relayed["usage"]["prompt_tokens"]
    assert by_tensors.text == relayed["choices"][0]["message"]["content"]


@pytest.mark.parametrize("token", [4, SECOND_EOS])
async def test_an_answer_that_holds_any_eos_cannot_be_resumed(configured_model: TritonModel, token: int) -> None:
    answer = await configured_model.generate(text_input="a", temperature=0.0, resume_ids=[9, token])
    assert answer.error == "invalid_request: resume_ids already hold a stop string or EOS: there is nothing to continue"


async def test_a_request_beyond_vllms_own_queue_is_overloaded(configured_model: TritonModel) -> None:
    endless = {"text_input": "a", "temperature": 0.0, "max_tokens": 1500, "stream": True}
    streams = [configured_model.open(**endless) for _ in range(QUEUED)]
    for stream in streams:
        await anext(aiter(stream))
    answer = await configured_model.generate(text_input="a", max_tokens=1)
    assert str(answer.error).startswith("overloaded: The engine is currently busy")
    for stream in streams:
        stream.cancel()

    async def is_answered() -> bool:
        return (await configured_model.generate(text_input="a", max_tokens=1)).error is None

    await soon(is_answered, "an answer after the streams have ended")


async def _chat(model: TritonModel, body: dict[str, Any]) -> Any:
    request = json.dumps({"endpoint": "chat", "body": {"model": "embedded", **body}}).encode()
    async for result, error in model.open(openai_request=list(request)):
        assert error is None
        assert result.as_numpy("openai_status").tolist() == [200]
        return json.loads(result.as_numpy("openai_response").tobytes())
    pytest.fail("no answer")
