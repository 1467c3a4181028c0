"""The real package `speculators`, which trains drafts: beside vLLM's environment, which has most of what it needs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream_tools.up.vllm_environment import VllmInstall

from tests.support.extra_packages import extra_packages

_REQUIREMENTS = Path(__file__).with_suffix(".txt")
_CACHE = Path("~/.cache/slipstream").expanduser()
_READ = """
import json, sys
from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset
rows, _ = load_raw_dataset(sys.argv[1])
dataset = build_speculator_training_dataset(dataset=rows, processor=None, max_length=4096, num_proc=1)
print("rows:" + json.dumps([{name: row[name].tolist() for name in ("input_ids", "loss_mask")} for row in dataset]))
"""


_RESOLVE = """
import sys
from speculators.train.config import TrainConfig
config = TrainConfig.resolve(sys.argv[1:])
print(config.speculator_type, config.trainer.epochs, config.verifier.verifier_name_or_path)
"""
_SAVE = """
import json, sys, torch
from pathlib import Path
from transformers import AutoConfig
from speculators import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
target, folder, kept = sys.argv[1], sys.argv[2], 512
layer = AutoConfig.from_pretrained(target)
layer.num_hidden_layers = 1
proposal = GreedyTokenProposalConfig(speculative_tokens=3)
made_for = VerifierConfig(name_or_path=target, architectures=["LlamaForCausalLM"])
speculators = SpeculatorsConfig(
    algorithm="eagle3", proposal_methods=[proposal], default_proposal_method="greedy", verifier=made_for
)
draft = Eagle3DraftModel(Eagle3SpeculatorConfig(
    transformer_layer_config=layer, draft_vocab_size=kept, target_hidden_size=layer.hidden_size,
    speculators_config=speculators,
))
ids = torch.arange(0, layer.vocab_size, layer.vocab_size // kept)
mask = torch.zeros(layer.vocab_size, dtype=torch.bool)
mask[ids] = True
draft.load_vocab_mappings(mask, ids - torch.arange(kept))
draft.load_verifier_weights()
draft.save_pretrained(folder)
"""


def training_rows(install: VllmInstall, path: Path) -> list[dict[str, Any]]:
    """The rows that `speculators prepare-data` makes of the JSON lines in `path`."""
    [line] = [line for line in _run(install, _READ, str(path)).splitlines() if line.startswith("rows:")]
    rows: list[dict[str, Any]] = json.loads(line.removeprefix("rows:"))
    return rows


def training_of(install: VllmInstall, options: Sequence[str]) -> list[str]:
    """The method, the passes and the target of `speculators train` with these options."""
    return _run(install, _RESOLVE, *options).splitlines()[-1].split()


def save_eagle3(install: VllmInstall, target: Path, folder: Path) -> None:
    """A new EAGLE-3 draft for `target`, as `speculators` writes it."""
    _run(install, _SAVE, str(target), str(folder))


def _run(install: VllmInstall, program: str, *arguments: str) -> str:
    """The output of a program that imports `speculators`."""
    done = subprocess.run(
        [str(install.python), "-c", program, *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(extra_packages(_REQUIREMENTS)),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(_CACHE / "speculators-home"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
