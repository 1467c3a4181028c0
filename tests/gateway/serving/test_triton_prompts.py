"""A text completion of several prompts from the real Triton: each is answered as it would be alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.gateway.serving.request_cases import CALL
from tests.gateway.serving.test_triton_serving import MODEL, client
from tests.support.polling import PATIENCE_S

PROMPTS = [CALL, "Hello", "Mara Osterova called about her coffee machine. She", "Write"]
OPTIONS: dict[str, Any] = {"model": MODEL, "temperature": 1.2, "seed": 11, "max_tokens": 12}


@pytest.mark.parametrize("n", [1, 2])
def test_each_prompt_has_the_answers_that_it_has_alone(gateway_url: str, n: int) -> None:
    completions = client(gateway_url).completions
    alone = [completions.create(prompt=prompt, n=n, **OPTIONS) for prompt in PROMPTS]
    together = completions.create(prompt=PROMPTS, n=n, **OPTIONS)
    assert [choice.index for choice in together.choices] == list(range(len(PROMPTS) * n))
    texts = [(choice.text, choice.finish_reason) for answer in alone for choice in answer.choices]
    assert [(choice.text, choice.finish_reason) for choice in together.choices] == texts
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(together.usage, count) == sum(getattr(answer.usage, count) for answer in alone)
    streamed = [""] * len(texts)
    for chunk in completions.create(prompt=PROMPTS, n=n, stream=True, **OPTIONS):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [text for text, _ in texts]


def test_token_ids_are_several_prompts_as_well(gateway_url: str) -> None:
    ids = [[5, 6, 7], [8, 9]]
    together = client(gateway_url).completions.create(prompt=ids, **OPTIONS)
    alone = [client(gateway_url).completions.create(prompt=one, **OPTIONS) for one in ids]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert together.usage.prompt_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_prompt_refuses_all_of_them(gateway_url: str, stream: bool) -> None:
    """A stream may have begun before the second prompt is tokenized: then the error is its last event."""
    body = {**OPTIONS, "prompt": [CALL, "word " * 20_000], "stream": stream}
    response = httpx.post(f"{gateway_url}/v1/completions", json=body, timeout=PATIENCE_S)
    error = json.loads(response.text.rstrip().rpartition("data: ")[2])["error"]
    assert response.status_code == 400 or stream
    assert (error["param"], error["code"]) == ("prompt[1]", "context_length_exceeded")
