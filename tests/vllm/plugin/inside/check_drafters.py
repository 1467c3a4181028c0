"""Drafters that take no number below `num_speculative_tokens`: vLLM's own classes around a model of the test's."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted import MOST, Engine, configuration, request, said_by_target, scheduler_for
from slipstream_vllm.draft_passes import install_in_worker
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

TARGET = os.environ["SLIPSTREAM_TARGET"]
FIXED = ("suffix", "extract_hidden_states", "ngram_gpu", "dflash", "custom_class", "draft_model")


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def config(request: pytest.FixtureRequest) -> Any:
    return configuration(TARGET, asynchronous=request.param)


@pytest.fixture(params=FIXED)
def engine(config: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A scheduler for each method; `draft_model` here proposes all tokens in one pass."""
    monkeypatch.setattr(config.speculative_config, "method", request.param)
    monkeypatch.setattr(config.speculative_config, "parallel_drafting", request.param in ("draft_model", "dflash"))
    return Engine(scheduler_for(config))


def test_drafts_are_cut_and_drafting_is_not_shortened(engine: Engine) -> None:
    lengths = {"a": 0, "b": 2, "c": 4}
    engine.add(*(request(name, length) for name, length in lengths.items()))
    engine.run()
    for name, length in lengths.items():
        assert max(step.verified.get(f"{name}-0123abcd", 0) for step in engine.steps) == length
        assert engine.received[f"{name}-0123abcd"] == [said_by_target(at) for at in range(40)]
    assert {step.proposed for step in engine.steps} == {MOST}


def test_a_limit_of_0_reaches_no_drafter(engine: Engine) -> None:
    engine.add(request("a", 4))
    for _ in range(4):
        engine.step()
    assert not engine.scheduler.slipstream_idle
    engine.scheduler.slipstream_set_limit(0)
    before = len(engine.steps)
    engine.step()
    assert engine.scheduler.slipstream_idle
    engine.run()
    assert {step.verified.get("a-0123abcd", 0) for step in engine.steps[before:]} == {0}
    assert {step.proposed for step in engine.steps} == {MOST}
    assert engine.received["a-0123abcd"] == [said_by_target(at) for at in range(40)]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's synchronous model runner with what drafting reads, and no target."""
    install_in_worker()
    made = GPUModelRunner.__new__(GPUModelRunner)
    made.vllm_config = configuration(TARGET, asynchronous=False)
    made.speculative_config = made.vllm_config.speculative_config
    made.use_async_scheduling = False
    made.device = torch.device("cpu")
    made.input_batch = SimpleNamespace(
        req_ids=["a", "b"],
        req_id_to_index={"a": 0, "b": 1},
        num_prompt_tokens=np.array([3, 3]),
        num_tokens_no_spec=np.array([4, 4]),
        token_ids_cpu=np.arange(16).reshape(2, 8),
    )
    return made


def propose(runner: Any, *caps: int) -> Any:
    """Draft after a step in which each request got one token. The scheduler does not shorten these drafters."""
    output = SimpleNamespace(
        slipstream_caps=dict(zip(runner.input_batch.req_ids, caps, strict=True)),
        num_spec_tokens_to_schedule=MOST,
        total_num_scheduled_tokens=2,
    )
    hidden = torch.zeros(2, 8)
    return runner.propose_draft_token_ids(output, [[7], [7]], None, hidden, hidden, None, None, None, None)


class Tree:
    """The cache of suffix decoding: what it was given, per request."""

    def __init__(self) -> None:
        self.active_requests: set[str] = set()
        self.cached_requests: set[str] = set()
        self.read: dict[str, list[int]] = {}

    def start_request(self, req_id: str, prompt: Any) -> None:
        self.active_requests.add(req_id)
        self.read[req_id] = []

    def add_active_response(self, req_id: str, tokens: list[int]) -> None:
        self.read[req_id] += tokens

    def speculate(self, req_id: str, pattern: Any, **limits: Any) -> Any:
        return SimpleNamespace(token_ids=[5] * MOST)


def test_suffix_decoding_reads_every_token(runner: Any) -> None:
    runner.speculative_config.method = "suffix"
    runner.drafter = drafter = SuffixDecodingProposer.__new__(SuffixDecodingProposer)
    drafter.num_speculative_tokens = MOST
    drafter.max_tree_depth, drafter.max_spec_factor, drafter.min_token_prob, drafter.max_model_len = 8, 1.0, 0.1, 512
    drafter.suffix_cache = tree = Tree()
    for caps in ((0, 2), (0, 0), (4, 4)):
        assert propose(runner, *caps) == [[5] * MOST] * 2
    assert tree.read == {"a": [7] * 3, "b": [7] * 3}
