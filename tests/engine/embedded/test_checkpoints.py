"""The two checkpoint folders that the wheel carries."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR, demo
from slipstream_engine.embedded.corpus import example
from slipstream_engine.model.config import ModelConfig, load_config
from slipstream_training.embedded.corpus_batches import render_prompt
from slipstream_training.embedded.shapes import DRAFT, TARGET
from slipstream_training.models.llama import Llama
from tokenizers import Tokenizer

FOLDERS = pytest.mark.parametrize("folder", [TARGET_DIR, DRAFT_DIR], ids=("target", "draft"))
TOKENIZER = Tokenizer.from_file(str(TARGET_DIR / "tokenizer.json"))


def test_the_pair_fits_into_twelve_megabytes() -> None:
    size = sum(path.stat().st_size for folder in (TARGET_DIR, DRAFT_DIR) for path in folder.iterdir())
    assert size < 12_000_000


def test_target_and_draft_share_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (TARGET_DIR / name).read_bytes() == (DRAFT_DIR / name).read_bytes()


@FOLDERS
def test_weights_are_finite_bfloat16(folder: Path) -> None:
    for tensor in load_file(folder / "model.safetensors").values():
        assert tensor.dtype is torch.bfloat16
        assert bool(tensor.isfinite().all())


@FOLDERS
def test_special_ids_in_the_config_are_the_tokenizer_s(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] == TOKENIZER.token_to_id("<|end|>")
    assert config["pad_token_id"] == TOKENIZER.token_to_id("<|pad|>")
    assert config["vocab_size"] == TOKENIZER.get_vocab_size()


@pytest.mark.parametrize(("folder", "config"), [(TARGET_DIR, TARGET), (DRAFT_DIR, DRAFT)], ids=("target", "draft"))
def test_checkpoints_have_the_shapes_that_training_makes(folder: Path, config: ModelConfig) -> None:
    found = load_config(folder)
    assert found.rope.theta == config.rope.theta
    assert msgspec.structs.replace(found, rope=config.rope) == config


@FOLDERS
def test_transformers_computes_the_same_logits(folder: Path) -> None:
    ids = torch.randint(5, TARGET.vocab_rows, (2, 40), generator=torch.Generator().manual_seed(0))
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(Llama.load(folder)(ids), reference(ids).logits, rtol=1e-3, atol=1e-3)


def test_the_chat_template_renders_what_training_used() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(TARGET_DIR)
    for index in range(20):
        one = example(21, index)
        rendered = tokenizer.apply_chat_template(one.chat(), tokenize=False, add_generation_prompt=True)
        assert rendered == render_prompt(one)


def test_the_chat_template_renders_a_finished_turn() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(TARGET_DIR)
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>Hi<|end|><|assistant|>Hello<|end|>"


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_the_tokenizer_round_trips_any_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@given(st.integers(0, 10**12))
def test_every_digit_is_a_token(number: int) -> None:
    tokens = TOKENIZER.encode(f"no. {number}").tokens
    assert tokens[-len(str(number)) :] == list(str(number))


def test_demo_prompts_are_short_and_end_with_the_user() -> None:
    for messages in (demo.CALL_SUMMARY, demo.ONE_LINE_STATUS, demo.EXTRACTION):
        assert messages[-1]["role"] == "user"
        assert len(TOKENIZER.encode(messages[-1]["content"]).ids) < 450
