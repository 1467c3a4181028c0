"""The real package `speculators` takes the commands of `slipstream drafts train`, and `check` reads its drafts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from slipstream_engine.embedded import TARGET_DIR
from slipstream_tools.cli import main
from slipstream_tools.drafts import recipes
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.support.speculators import save_eagle3, training_of


@pytest.mark.slow  # imports another training framework with each method
@pytest.mark.parametrize("method", recipes.METHODS)
def test_speculators_knows_the_options(method: str, vllm_install: VllmInstall, tmp_path: Path) -> None:
    text = recipes.script(
        method, target=str(TARGET_DIR), draft=None, passes="2", answers=tmp_path / "answers.jsonl", output=tmp_path
    )
    [train] = [line for line in text.splitlines() if line.startswith("speculators train ")]
    assert training_of(vllm_install, shlex.split(train)[2:]) == [method, "2", str(TARGET_DIR)]


@pytest.mark.slow
def test_check_reads_the_drafts_of_speculators(
    vllm_install: VllmInstall, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "eagle3"
    save_eagle3(vllm_install, TARGET_DIR, draft)
    command = ["drafts", "check", "--target", "embedded:target", "--draft", str(draft)]
    assert main(command) == 0
    assert f"eagle3 for {TARGET_DIR}, proposes 512 of 2048 tokens" in capfd.readouterr().out

    weights = load_file(draft / "model.safetensors")
    for tensor, broken, message in (
        ("d2t", weights["d2t"].flip(0), "t2d and d2t name different tokens of the target"),
        ("d2t", torch.zeros(4, dtype=torch.int64), "have the shapes [2048] and [4], config.json says [2048] and [512]"),
        ("fc.weight", torch.full((128, 384), torch.inf), "tensor 'fc.weight' has values that are not finite"),
    ):
        save_file(weights | {tensor: broken}, draft / "model.safetensors")
        assert main(command) == 1
        assert message in capfd.readouterr().out
    save_file(weights, draft / "model.safetensors")

    config = json.loads((draft / "config.json").read_text())
    for changes, message in (
        ({"target_hidden_size": 64}, "hidden_size is 128 in the target, and the draft was trained for 64"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 30]}, "reads the target's layers [2, 30], and the target has 16"),
        ({"transformer_layer_config": [1]}, "Expected `object`, got `array` - at `$.transformer_layer_config`"),
        ({"speculators_config": {"verifier": {"architectures": ["Qwen3ForCausalLM"]}}}, "trained for Qwen3ForCausalLM"),
    ):
        (draft / "config.json").write_text(json.dumps(config | changes))
        assert main(command) == 1
        assert message in capfd.readouterr().out
