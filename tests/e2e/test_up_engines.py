"""`slipstream up` with another engine and another model: vLLM with the plugin, and SmolLM2 on both engines."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from slipstream_tools.up.smollm2 import smollm2_folder
from slipstream_tools.up.vllm_install import install_vllm

from tests.e2e.pasted import run_pasted
from tests.support.streams import whole_events_of

# The first run installs vLLM and downloads SmolLM2.
pytestmark = pytest.mark.timeout(1200)

TEXT = (
    "The city council of Lyon met on Tuesday, 14 March 2026, to discuss the new tram line. Mayor Anne Keller said the "
    "line will cost 48 million euros and open in 2029."
)
QUESTIONS = (
    "What is the capital of France?",
    "Summarise this text in one sentence.\n\n" + TEXT,
    "Rewrite this text in the past tense, keep every fact:\n\n" + TEXT,
    "Explain in one sentence why the sky is blue.",
    "Translate to French: The weather is nice today.",
)
ANSWER_TOKENS = 40


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The converted checkpoint; the first run of this machine makes it."""
    return smollm2_folder(lambda line: print(line, file=sys.stderr))


@pytest.fixture(scope="module")
def expected(smollm2: Path) -> list[str]:
    """What transformers' own greedy search answers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    answers = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = model.generate(**prompt, max_new_tokens=ANSWER_TOKENS, do_sample=False)
        answers.append(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


# With a fixed draft length: where the engine may choose one, a slow first step may have it draft little.
MODES = ({"x-slipstream-mode": "plain"}, {"x-slipstream-mode": "speculative", "x-slipstream-draft-length": "3"})


def _ask(url: str, question: str, mode: dict[str, str]) -> tuple[str, dict[str, Any], dict[str, str]]:
    """The text, the usage, and the gateway's headers."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **mode},
    )
    with urllib.request.urlopen(request, timeout=240) as response:
        answer = json.load(response)
        headers = {name: value for name, value in response.headers.items() if name.startswith("x-slipstream-")}
    return answer["choices"][0]["message"]["content"], answer["usage"], headers


def _check_smollm2(up: Any, expected: list[str]) -> None:
    """Its answers are those of transformers, in both modes; drafts from the prompt are accepted."""
    accepted = 0
    for question, text in zip(QUESTIONS, expected, strict=True):
        for mode in MODES:
            answer, usage, headers = _ask(up.url, question, mode)
            assert answer == text, f"{mode}: {question}"
            assert headers["x-slipstream-arm"] == mode["x-slipstream-mode"], headers
            assert usage["slipstream"]["draft_length"] == int(mode.get("x-slipstream-draft-length", 0)), usage
        accepted += usage["completion_tokens_details"]["accepted_prediction_tokens"]
    assert "Paris" in expected[0]
    assert accepted > 20, usage
    headers, _ = run_pasted(up.commands[0])
    assert headers["x-slipstream-class"].startswith("summarization/")
    _, body = run_pasted(up.commands[1])
    assert "Paris" in json.loads(body)["choices"][0]["message"]["content"]
    _, body = run_pasted(up.commands[2])
    assert json.loads(body)["arm"] in ("plain", "speculative")


@pytest.mark.slow  # two systems, one with a larger model
def test_a_second_up_runs_beside_the_first_and_serves_smollm2(
    start_up: Callable[..., Any], expected: list[str]
) -> None:
    first = start_up()
    second = start_up("--model", "smollm2")
    _check_smollm2(second, expected)
    headers, _ = run_pasted(first.commands[1])
    assert headers["x-slipstream-class"].endswith("/short")
    assert second.stop() == 0
    assert first.stop() == 0
    assert first.left_behind() == second.left_behind() == []


@pytest.mark.slow  # starts vLLM; test_up.py has the commands, tests/vllm the server
def test_embedded_pair_on_vllm_shows_the_same_three_commands(start_up: Callable[..., Any]) -> None:
    install_vllm(lambda line: print(line, file=sys.stderr))  # not within the time that a start may take
    up = start_up("--engine", "vllm")
    headers, body = run_pasted(up.commands[0])
    assert headers["x-slipstream-arm"] == "speculative", headers
    assert int(headers["x-slipstream-draft-length"]) > 0
    usage = whole_events_of(body)[-1]["usage"]
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    headers, body = run_pasted(up.commands[1])
    assert headers["x-slipstream-class"].endswith("/short")
    assert json.loads(body)["choices"][0]["message"]["content"].strip()
    _, body = run_pasted(up.commands[2])
    assert json.loads(body)["arm"] in ("plain", "speculative")
    assert any("EngineCore" in child.name() for child in up.children)
    assert up.stop(signal.SIGINT) == 0
    assert up.left_behind() == []


@pytest.mark.slow  # vLLM on a larger model; test_up.py kills `up` as well
def test_smollm2_on_vllm_and_killed_up_leaves_no_process(start_up: Callable[..., Any], expected: list[str]) -> None:
    install_vllm(lambda line: print(line, file=sys.stderr))
    up = start_up("--engine", "vllm", "--model", "smollm2")
    _check_smollm2(up, expected)
    assert up.stop(signal.SIGKILL) == -signal.SIGKILL
    assert up.left_behind(timeout_s=30.0) == []
