"""The forward pass gives the logits that transformers gives, for every supported family and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from slipstream_engine.errors import CheckpointError
from slipstream_engine.model.checkpoint import load_weights
from slipstream_engine.model.config import load_config
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
# The name of the class and its options: to import a configuration of transformers takes seconds.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-tied-wide-heads": ("LlamaConfig", {"head_dim": 32, "tie_word_embeddings": True}),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama-no-gqa": ("LlamaConfig", {"num_key_value_heads": 8}),
    "llama-rope-linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    ),
    "llama-rope-llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama-rope-yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
}
CPU = torch.device("cpu")


def random_model(name: str) -> Any:
    """A transformers model with random weights."""
    kind, options = CONFIGS[name]
    return transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES | options))


@pytest.fixture(params=sorted(CONFIGS))
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A random transformers model, its biases and norms not at their trivial starting values, and its folder."""
    torch.manual_seed(5)
    model = random_model(request.param).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.08)
    # Small shards on purpose: half of the cases load from several files.
    model.save_pretrained(tmp_path, max_shard_size="60KB" if len(request.param) % 2 else "5GB")
    return model, tmp_path


def _expected(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def _load(folder: Path) -> Model:
    return Model.load(folder, device=CPU, dtype=torch.float32)


def _run(model: Model, cache: Any, spans: list[Span], ids: list[list[int]]) -> list[torch.Tensor]:
    batch = model.layout(spans)
    with torch.no_grad():
        hidden = model.forward(torch.tensor([token for row in ids for token in row]), batch, cache)
        return list(model.logits(hidden).split([span.tokens for span in spans]))


def test_whole_prompt_gives_transformers_logits(reference: tuple[Any, Path]) -> None:
    theirs, folder = reference
    ids = torch.randint(3, 97, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    model = _load(folder)
    (logits,) = _run(model, model.new_cache(1), [Span(0, 0, len(ids))], [ids])
    torch.testing.assert_close(logits, _expected(theirs, ids), rtol=1e-4, atol=1e-4)


def test_requests_of_unlike_sizes_give_transformers_logits(reference: tuple[Any, Path]) -> None:
    """Padding all of them to the longest text would cost more than attention for one request at a time."""
    theirs, folder = reference
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(3, 97, (count,), generator=generator).tolist() for count in (240, 23))
    model = _load(folder)
    cache = model.new_cache(3)
    _run(model, cache, [Span(0, 0, 120)], [a[:120]])
    _run(model, cache, [Span(2, 0, 20)], [b[:20]])
    spans = [Span(0, 120, 120), Span(2, 20, 3)]
    assert model.layout(spans).parts
    rows_a, rows_b = _run(model, cache, spans, [a[120:], b[20:]])
    torch.testing.assert_close(rows_a, _expected(theirs, a)[120:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rows_b, _expected(theirs, b)[20:], rtol=1e-4, atol=1e-4)


def test_requests_alike_share_one_call_of_attention(reference: tuple[Any, Path]) -> None:
    model = _load(reference[1])
    assert not model.layout([Span(slot, 100, 2) for slot in range(4)]).parts


def test_chunks_and_ragged_neighbours_give_transformers_logits(reference: tuple[Any, Path]) -> None:
    """Two requests with a hole between their slots, prompt in chunks, then passes of unequal width."""
    theirs, folder = reference
    generator = torch.Generator().manual_seed(2)
    a = torch.randint(3, 97, (40,), generator=generator).tolist()
    b = torch.randint(3, 97, (23,), generator=generator).tolist()
    model = _load(folder)
    cache = model.new_cache(4)
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(7.0)  # leftovers of an earlier request must not be seen
    got_a = [
        *_run(model, cache, [Span(1, 0, 16)], [a[:16]]),
        *_run(model, cache, [Span(1, 16, 14)], [a[16:30]]),
    ]
    got_b = _run(model, cache, [Span(3, 0, 20)], [b[:20]])
    for (start_a, end_a), (start_b, end_b) in (
        ((30, 35), (20, 21)),
        ((35, 36), (21, 22)),
        ((36, 40), (22, 23)),
    ):
        spans = [Span(1, start_a, end_a - start_a), Span(3, start_b, end_b - start_b)]
        rows_a, rows_b = _run(model, cache, spans, [a[start_a:end_a], b[start_b:end_b]])
        got_a.append(rows_a)
        got_b.append(rows_b)
    torch.testing.assert_close(torch.cat(got_a), _expected(theirs, a), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat(got_b), _expected(theirs, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'factor' is missing"),
        ({"intermediate_size": 100}, r"has shape \[112, 64\], config.json says \[100, 64\]"),
        ({"num_hidden_layers": 4}, "tensor 'model.layers.3.input_layernorm.weight' is missing"),
        ({"hidden_size": "wide"}, "invalid literal"),
    ],
)
def test_unsupported_checkpoint_is_refused_with_its_reason(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    import json

    random_model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        Model.load(tmp_path, device=CPU, dtype=torch.float32)


def test_missing_key_in_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4, "hidden_size": 8}')
    with pytest.raises(CheckpointError, match="'intermediate_size' is missing"):
        load_config(tmp_path)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a tensor file")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_weights(tmp_path, load_config(tmp_path), CPU, torch.float32)


def test_sliding_window_ends_the_context(tmp_path: Path) -> None:
    transformers.MistralConfig(**{**SIZES, "sliding_window": 96}).save_pretrained(tmp_path)
    assert load_config(tmp_path).context_tokens == 96
