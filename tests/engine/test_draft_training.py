"""The training of drafts: what is held out, and the model that is trained against the engine's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span
from slipstream_training import command
from slipstream_training.answers import Answers, read_rows
from slipstream_training.models import llama
from slipstream_training.models.llama import Llama
from slipstream_training.rows import Row


def _rows(count: int, seed: int = 0) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [Row(rng.integers(0, 100, 20).astype(np.int32), 10) for _ in range(count)]


def _answers(rows: list[Row]) -> Answers:
    return Answers(rows, seed=1, max_tokens=256, pad_id=0)


def test_what_is_held_out_stays_so_with_other_answers_beside_it() -> None:
    rows, more = _rows(1000), _rows(200, seed=1)
    before, after = _answers(rows), _answers([*more, *rows[5:]])
    trained = {row.ids.tobytes() for row in before.trained}
    assert 20 < len(before.unseen) < 90
    assert trained.isdisjoint(row.ids.tobytes() for row in after.unseen)
    assert len(_answers(rows + rows).unseen) == 2 * len(before.unseen)


def test_equal_answers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are held out together, so none is left to train on."""
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}\n' * 40)
    folders = ["--target", str(TARGET_DIR), "--draft", str(DRAFT_DIR), "--output", str(tmp_path / "out")]
    assert command.main(["--answers", str(answers), *folders, "--device", "cpu"]) == 1
    assert "40 answers, all of them equal" in capsys.readouterr().err


def test_batches_resume_at_their_number() -> None:
    answers = _answers(_rows(300))
    whole = [batch for _, batch in zip(range(40), answers.batches(0), strict=False)]
    number, batch = next(answers.batches(30))
    assert number == 30
    assert torch.equal(batch.ids, whole[30][1].ids)


def test_long_answers_are_cut_off_and_long_prompts_left_out() -> None:
    lines = [
        b'{"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 1, 1, 1, 1]}',
        b'{"input_ids": [1, 2, 3, 4, 5, 6], "loss_mask": [0, 0, 0, 0, 0, 1]}',
    ]
    found = read_rows(lines, context_tokens=4, vocabulary=10)
    assert [row.ids.tolist() for row in found.rows] == [[1, 2, 3, 4]]
    assert found.left_out == {"with a prompt of 4 tokens or more": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nonsense", "line 1 of the answers: JSON is malformed"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 0]}', "loss_mask is not 0 for each token of the prompt"),
        (b'{"input_ids": [1, 2], "loss_mask": [0, 0]}', "the prompt or the answer has no tokens"),
        (b'{"input_ids": [1, 12], "loss_mask": [0, 1]}', "has the token id 12, and the target has 10 tokens"),
    ],
)
def test_broken_rows_are_named(line: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_rows([line], context_tokens=4, vocabulary=10)


def test_long_texts_have_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take another attention, since the scores of all pairs would not fit."""
    model, ids = Llama.load(DRAFT_DIR), torch.randint(5, 2048, (2, 96), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        short = model(ids)
        monkeypatch.setattr(llama, "_WRITTEN_OUT", 8)
        torch.testing.assert_close(model(ids), short, rtol=1e-4, atol=1e-4)


def _small(kind: str, folder: Path) -> torch.nn.Module:
    common = {
        "vocab_size": 120, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    torch.manual_seed(1)
    if kind == "qwen2":
        model: torch.nn.Module = transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**common, tie_word_embeddings=True)
        )
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common, tie_word_embeddings=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_other_families_train_with_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    reference, ids = _small(kind, tmp_path), torch.randint(0, 120, (2, 30))
    with torch.no_grad():
        torch.testing.assert_close(Llama.load(tmp_path)(ids), reference(ids).logits, rtol=1e-3, atol=1e-3)


def test_a_head_in_the_file_is_used_as_in_the_engine(tmp_path: Path) -> None:
    for file in DRAFT_DIR.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(DRAFT_DIR / "model.safetensors")
    weights["lm_head.weight"] = torch.flip(weights["model.embed_tokens.weight"], (0,))
    save_file(weights, tmp_path / "model.safetensors")
    ids = torch.randint(5, 2048, (1, 12))
    engine = Model.load(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        hidden = engine.forward(ids[0], engine.layout([Span(0, 0, 12)]), engine.new_cache(1))
        torch.testing.assert_close(Llama.load(tmp_path)(ids)[0], engine.logits(hidden), rtol=1e-3, atol=1e-3)


def test_a_cpu_without_bfloat16_arithmetic_trains_in_float32() -> None:
    code = "from slipstream_training.models.precision import training_dtype as of; print(of('cpu'), of('cuda'))"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["torch.float32", "torch.bfloat16"]
