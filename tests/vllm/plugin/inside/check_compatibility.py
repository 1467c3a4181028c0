"""Servers that the plugin refuses, each with one sentence, and vendors' builds that it leaves alone."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from typing import Any

import pytest
import vllm
from scripted import configuration
from slipstream_vllm import compatibility, settings
from slipstream_vllm.errors import UnsupportedServerError
from slipstream_vllm.plugin import register
from vllm.config.compilation import CUDAGraphMode
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.worker_base import WorkerWrapperBase

TARGET = os.environ["SLIPSTREAM_TARGET"]


@pytest.fixture
def config() -> Any:
    return configuration(TARGET, asynchronous=False)


def test_an_untested_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.99.1+cpu")
    with pytest.raises(UnsupportedServerError, match=r"tested with vLLM 0\.29\.0, .* not with 0\.99\.1: install one"):
        configuration(TARGET, asynchronous=False)


def test_a_draft_model_beside_shared_experts_is_refused_on_v2(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.parallel_config, "data_parallel_size", 2)
    monkeypatch.setattr(type(config.model_config), "get_num_experts", lambda self: 8)
    compatibility.check_configuration(config)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(
        UnsupportedServerError, match=r"data_parallel_size 2 and a mixture of experts: draft with a head"
    ):
        compatibility.check_configuration(config)


@pytest.mark.parametrize(
    ("runner", "method", "asynchronous", "remedy"),
    [
        ("0", "draft_model", False, "set VLLM_USE_V2_MODEL_RUNNER=1"),
        ("0", "ngram", False, "set VLLM_USE_V2_MODEL_RUNNER=1"),
        ("1", "draft_model", True, "draft with a head or n-grams"),
        ("1", "eagle3", False, "remove --no-async-scheduling"),
        ("1", "eagle3", True, None),
    ],
)
def test_stages_beside_which_vllm_cannot_draft_are_refused(
    config: Any, monkeypatch: pytest.MonkeyPatch, runner: str, method: str, asynchronous: bool, remedy: str | None
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    monkeypatch.setattr(config.speculative_config, "method", method)
    monkeypatch.setattr(config.scheduler_config, "async_scheduling", asynchronous)
    compatibility.check_configuration(config)
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    refused = pytest.raises(UnsupportedServerError, match=f"pipeline_parallel_size 2: {remedy}")
    with contextlib.nullcontext() if remedy is None else refused:
        compatibility.check_configuration(config)
    monkeypatch.setattr(config, "speculative_config", None)
    compatibility.check_configuration(config)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (EngineCore, "post_step"),
        (GPUModelRunner, "_sample"),
        (GPUModelRunner, "_update_states"),
        (OpenAIServingResponses, "responses_full_generator"),
    ],
)
def test_a_missing_hook_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(UnsupportedServerError, match=rf"{owner.__name__}\.{name}; install a stock vLLM"):
        configuration(TARGET, asynchronous=False)


def test_a_build_without_a_hook_starts_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(EngineCore, "post_step")
    register()
    assert not hasattr(EngineCore, "post_step")
    without_plugin()


def test_a_worker_without_the_plugin_needs_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(GPUModelRunner, "_sample")
    worker = WorkerWrapperBase.__new__(WorkerWrapperBase)
    worker.vllm_config = without_plugin()
    worker.worker = Device()  # type: ignore[assignment]  # stands for the machine
    worker.init_device()
    assert worker.worker.initialized


class Device:
    """A worker that only remembers that it was initialized."""

    initialized = False
    _worker_extension_cls = None

    def init_device(self) -> None:
        self.initialized = True


def without_plugin() -> Any:
    args = vllm.EngineArgs(model=TARGET, dtype="float32", max_model_len=512, enforce_eager=True)
    return args.create_engine_config()


def test_the_rust_frontend_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "0")
    compatibility.check_configuration(config)
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(UnsupportedServerError, match=r"VLLM_USE_RUST_FRONTEND=1: .* unset it"):
        compatibility.check_configuration(config)


def test_an_old_v2_runner_with_a_draft_model_gets_a_warning(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compatibility.warnings(config) == []
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    assert compatibility.warnings(config) == []
    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    [warning] = compatibility.warnings(config)
    assert "set VLLM_USE_V2_MODEL_RUNNER=0" in warning
    monkeypatch.setattr(config.speculative_config, "method", "eagle3")
    assert compatibility.warnings(config) == []


@pytest.mark.parametrize(
    ("mode", "adaptive", "words"),
    [
        ("NONE", False, None),
        ("PIECEWISE", False, None),
        ("FULL", False, None),
        ("FULL_AND_PIECEWISE", True, None),
        ("FULL_AND_PIECEWISE", False, "verifies 4 draft tokens, and a PIECEWISE one otherwise"),
        ("FULL_DECODE_ONLY", False, "verifies 4 draft tokens, and none otherwise"),
    ],
)
def test_graphs_for_one_length_alone_get_a_warning(
    config: Any, monkeypatch: pytest.MonkeyPatch, mode: str, adaptive: bool, words: str | None
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(vllm, "__version__", "0.32.0")
    monkeypatch.setattr(config.compilation_config, "cudagraph_mode", CUDAGraphMode[mode])
    monkeypatch.setattr(config.speculative_config, "enable_adaptive_verification", adaptive)
    found = compatibility.warnings(config)
    assert len(found) == (words is not None)
    assert all(str(words) in warning for warning in found)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert compatibility.warnings(config) == []


@pytest.mark.parametrize(
    ("release", "default", "supported"),
    [("0.31.0", "rejection", False), ("0.32.0", "equality", True), ("0.33.0", "rejection", True)],
)
def test_equality_on_v2_needs_its_sampler(
    monkeypatch: pytest.MonkeyPatch, release: str, default: str, supported: bool
) -> None:
    config = configuration(TARGET, asynchronous=False)
    monkeypatch.setattr(vllm, "__version__", release)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    settings.fix_acceptance(config)
    assert settings.acceptance(config) == default
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", "equality")
    settings.fix_acceptance(config)
    refused = pytest.raises(
        UnsupportedServerError, match=r"needs vLLM 0\.32 or later, this is 0\.31\.0: set VLLM_USE_V2_MODEL_RUNNER=0"
    )
    with contextlib.nullcontext() if supported else refused:
        compatibility.check_configuration(config)


def test_the_warning_is_logged_at_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", "rejection")
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)  # vLLM for CPUs comes without
    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    caplog.set_level(logging.WARNING, "vllm.slipstream_vllm.plugin")
    configuration(TARGET, asynchronous=False)
    assert [record.levelname for record in caplog.records if "draft length 0 pays" in record.message] == ["WARNING"]


@pytest.mark.parametrize(
    ("runner", "sampler", "drafts", "rule"),
    [
        ("0", "standard", "greedy", "equality"),  # on CPUs
        ("1", "standard", "greedy", "equality"),
        ("1", "standard", "probabilistic", "rejection"),
        ("1", "block", "greedy", "rejection"),
    ],
)
def test_the_default_rule_depends_on_the_runner_and_the_configuration(
    monkeypatch: pytest.MonkeyPatch, runner: str, sampler: str, drafts: str, rule: str
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)  # vLLM for CPUs comes without
    speculative = {"rejection_sample_method": sampler, "draft_sample_method": drafts}
    config = configuration(TARGET, asynchronous=False, speculative=speculative)
    assert settings.acceptance(config) == rule


def test_equality_beside_another_verification_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", "equality")
    with pytest.raises(UnsupportedServerError, match=r"rejection_sample_method 'block': remove this field"):
        configuration(TARGET, asynchronous=False, speculative={"rejection_sample_method": "block"})


def hybrid(method: str = "draft_model", value: object = True, **speculative: Any) -> Any:
    """A configuration of the V2 model runner with copies of the text beside the drafter's tokens."""
    args = vllm.EngineArgs(
        model=TARGET,
        dtype="float32",
        max_model_len=512,
        enforce_eager=True,
        scheduler_cls="slipstream_vllm.Scheduler",
        additional_config={"slipstream_hybrid": value},
        speculative_config={
            "method": method,
            "num_speculative_tokens": 4,
            **({"model": TARGET.replace("target", "draft")} if method != "ngram" else {}),
            **speculative,
        },
    )
    return args.create_engine_config()


@pytest.fixture
def v2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr("vllm.config.vllm.HAS_TRITON", True)  # vLLM for CPUs comes without


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_copies_are_verified_beside_a_draft_model_or_a_head(method: str) -> None:
    assert settings.is_hybrid(hybrid(method))
    assert not settings.is_hybrid(hybrid(method, value=False))


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize(
    ("method", "value", "speculative", "message"),
    [
        ("ngram", True, {}, r"needs one of the drafting methods draft_model, eagle, not ngram"),
        ("draft_model", "yes", {}, r"slipstream_hybrid is 'yes'; true or false is required"),
        ("draft_model", True, {"draft_sample_method": "probabilistic"}, "ACCEPTANCE=equality, not rejection"),
    ],
)
def test_copies_beside_another_setting_are_refused(
    method: str, value: object, speculative: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedServerError, match=message):
        hybrid(method, value, **speculative)


@pytest.mark.usefixtures("v2")
def test_copies_with_adaptive_verification_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = hybrid()  # vLLM itself refuses adaptive verification without CUDA graphs
    monkeypatch.setattr(config.speculative_config, "enable_adaptive_verification", True)
    with pytest.raises(UnsupportedServerError, match="does not support enable_adaptive_verification"):
        compatibility.check_configuration(config)


@pytest.mark.usefixtures("v2")
@pytest.mark.parametrize(("variable", "release"), [("0", "0.32.0"), ("1", "0.33.0")])
def test_copies_on_another_runner_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, release: str) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", variable)
    monkeypatch.setattr(vllm, "__version__", release)
    with pytest.raises(UnsupportedServerError, match=r"slipstream_hybrid needs the V2 model runner of vLLM 0\.32"):
        hybrid()


SYNTHETIC = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}


def test_lossy_verification_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedServerError, match=r"rejection_sample_method 'synthetic' is lossy"):
        configuration(TARGET, asynchronous=False, speculative=SYNTHETIC)
    for rule in ("equality", "rejection"):
        monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", rule)
        settings.fix_acceptance(config)
        monkeypatch.setattr(config.speculative_config, "rejection_sample_method", "fly")  # of vLLM 0.33
        with pytest.raises(UnsupportedServerError, match=r"rejection_sample_method 'fly' is lossy"):
            compatibility.check_configuration(config)


def test_a_benchmark_accepts_synthetically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", "synthetic")
    assert settings.acceptance(configuration(TARGET, asynchronous=False, speculative=SYNTHETIC)) == "synthetic"
    with pytest.raises(UnsupportedServerError, match="needs rejection_sample_method 'synthetic', not 'standard'"):
        configuration(TARGET, asynchronous=False)


def test_equality_with_watermarks_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "watermark_config", object())
    with pytest.raises(UnsupportedServerError, match="does not support watermarks"):
        compatibility.check_configuration(config)


def test_only_the_hooks_of_the_runner_are_needed(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(GPUModelRunner, "_sample")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    compatibility.check_hooks(config)
    monkeypatch.delattr("vllm.v1.worker.gpu.spec_decode.rejection_sampler.RejectionSampler._verify")
    with pytest.raises(UnsupportedServerError, match=r"RejectionSampler\._verify; install a stock vLLM"):
        compatibility.check_hooks(config)


@pytest.mark.parametrize("rule", ["equality", "rejection"])
def test_workers_have_the_rule_without_the_environment(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", rule)
    sent = pickle.dumps(configuration(TARGET, asynchronous=False))
    monkeypatch.setenv("SLIPSTREAM_VLLM_ACCEPTANCE", "")
    assert settings.acceptance(pickle.loads(sent)) == rule
