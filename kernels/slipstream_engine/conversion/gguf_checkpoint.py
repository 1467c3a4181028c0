"""Converts a GGUF file of a Llama model to a Hugging Face folder.

    python -m slipstream_engine.conversion.gguf_checkpoint FILE FOLDER

Weights are dequantised and stored as bfloat16. A GGUF file stores the rows of q and k in llama.cpp's rotation order, in
adjacent pairs; Hugging Face rotates the two halves of a head.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from slipstream_engine.conversion.gguf_reading import GgufFile
from slipstream_engine.conversion.gguf_tokenizer import write_tokenizer
from slipstream_engine.errors import CheckpointError

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_UNSUPPORTED = ("llama.rope.scaling.type", "llama.expert_count")


def convert(file: Path, folder: Path) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` and the tokenizer's files into `folder`.

    Raises:
        CheckpointError: the file is not a GGUF file, or its model or tokenizer is not supported.
    """
    source = GgufFile(file)
    for field in _UNSUPPORTED:
        if source.has(field):
            raise CheckpointError(f"{file}: {field} is not supported")
    write_tokenizer(source, folder)
    weights = _weights(source)
    _write_json(folder / "config.json", _config(source, tied="lm_head.weight" not in weights))
    _write_json(folder / "generation_config.json", _token_ids(source))
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _weights(source: GgufFile) -> dict[str, torch.Tensor]:
    heads = {
        "attn_q": source.get("llama.attention.head_count", int),
        "attn_k": source.get("llama.attention.head_count_kv", int),
    }
    weights = {}
    for name, values in source.tensors():
        part = name.removesuffix(".weight").rpartition(".")[2]
        rows = _halves(values, heads[part]) if part in heads else values
        weights[_renamed(source, name)] = torch.from_numpy(np.array(rows)).to(torch.bfloat16)
    return weights


def _renamed(source: GgufFile, name: str) -> str:
    """Hugging Face's name of a tensor: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.weight"
    if len(parts) == 2 and parts[0] in _NAMES and parts[1] == "weight":
        return f"{_NAMES[parts[0]]}.weight"
    raise CheckpointError(f"{source.path}: the tensor {name!r} is not supported")


def _halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder rows [heads * dim, inputs] from pairs to halves: row 2i + j of a head becomes row j * dim / 2 + i."""
    rows, inputs = values.shape
    return values.reshape(heads, rows // heads // 2, 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


def _config(source: GgufFile, *, tied: bool) -> dict[str, object]:
    hidden, heads = source.get("llama.embedding_length", int), source.get("llama.attention.head_count", int)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": source.get("llama.block_count", int),
        "hidden_size": hidden,
        "intermediate_size": source.get("llama.feed_forward_length", int),
        "num_attention_heads": heads,
        "num_key_value_heads": source.get("llama.attention.head_count_kv", int),
        "head_dim": hidden // heads,
        "vocab_size": source.get("llama.vocab_size", int),
        "max_position_embeddings": source.get("llama.context_length", int),
        "rope_theta": source.get("llama.rope.freq_base", float),
        # The file holds a float32; its shortest decimal form is the original number.
        "rms_norm_eps": float(str(np.float32(source.get("llama.attention.layer_norm_rms_epsilon", float)))),
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **_token_ids(source),
    }


def _token_ids(source: GgufFile) -> dict[str, object]:
    return {
        "bos_token_id": source.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": source.get("tokenizer.ggml.eos_token_id", int),
        "pad_token_id": source.get("tokenizer.ggml.padding_token_id", int),
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: python -m slipstream_engine.conversion.gguf_checkpoint FILE FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        convert(Path(arguments[0]), folder)
    except (CheckpointError, OSError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
