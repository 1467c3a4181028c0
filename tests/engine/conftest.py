"""Small random checkpoints: a target, a draft that often agrees with it, and one tokenizer for both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from slipstream_engine.serving.loading import load_engine
from slipstream_engine.settings import EngineSettings
from slipstream_engine.step.engine import Engine
from slipstream_training.models.eagle_head import Head
from slipstream_training.models.llama import llama_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engine.requests_and_answers import Make

EOS = "<|end|>"
torch.set_num_threads(1)  # tiny tensors: a second thread waits, and takes a processor to do so


def _write_tokenizer(folder: Path) -> None:
    """Every byte is one token, so that any id of a random model has a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": EOS, "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_model(
    folder: Path, seed: int, layers: int, like: transformers.LlamaForCausalLM | None, noise: float
) -> transformers.LlamaForCausalLM:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=160,
        tie_word_embeddings=False,
        eos_token_id=256,
        bos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.35) if parameter.dim() > 1 else parameter.fill_(1.0)
        if like is not None:
            for name, parameter in model.named_parameters():
                parameter.copy_(like.get_parameter(name) + noise * torch.randn_like(parameter))
        model.lm_head.weight[256] = 0.0  # never the largest of 257 logits: answers have a length
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return model


def eagle_head(target: transformers.LlamaForCausalLM) -> Head:
    """A random EAGLE head for `target`."""
    config = target.config
    shape = llama_config(
        layers=1,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        head_dim=config.head_dim,
        context=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
    )
    torch.manual_seed(4)
    head = Head(shape)
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.35)
            parameter.copy_(parameter.bfloat16())  # as in its file
    return head


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target`, `close` (a draft near the target), `far` (an unrelated draft) and `eagle` (a random EAGLE
    head that proposes the even token ids)."""
    root = tmp_path_factory.mktemp("pair")
    for name in ("target", "close", "far"):
        (root / name).mkdir()
    target = _write_model(root / "target", 1, 2, None, 0)
    _write_model(root / "close", 2, 2, target, 0.004)
    _write_model(root / "far", 3, 1, None, 0)
    eagle_head(target).save(root / "eagle", range(0, 257, 2))
    return root


@pytest.fixture
def make_engine(pair_folder: Path) -> Make:
    """Load an engine over the small pair: `make_engine("close", max_slots=3)`; draft "ngram", "ngram+close" and None
    work too."""

    def make(draft: str | None, **changes: object) -> Engine:
        first, _, second = (draft or "none").partition("+")
        kind = "hybrid" if second else first if first in ("ngram", "none") else "model"
        values = {
            "target": str(pair_folder / "target"),
            "draft": str(pair_folder / (second or first)) if kind in ("model", "hybrid") else None,
            "draft_kind": kind,
            "max_slots": 4,
            "device": "cpu",
            "threads": 1,  # tiny tensors: a second thread only waits
            **changes,
        }
        return load_engine(EngineSettings(**values))  # type: ignore[arg-type]

    return make
