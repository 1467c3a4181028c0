"""A GGUF file becomes the Hugging Face folder that it came from: weights, configuration, tokenizer, chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import regex
import torch
import transformers
from slipstream_engine.conversion.gguf_checkpoint import convert, main
from slipstream_engine.errors import CheckpointError
from slipstream_engine.text.tokenizer import Tokenizer

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 96, 160, 2, 6, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# llama.cpp's expressions for `smollm`, applied one after the other.
DIGIT = regex.compile(r"\p{N}|[^\p{N}]+")
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def model() -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=len(_tokens()),
        max_position_embeddings=256,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _tokens() -> list[str]:
    alphabet = sorted(regex.findall(r".", "".join(_byte_letters()), regex.DOTALL))
    return [*CONTROL, *alphabet, "th", "the", "Ġthe", "20"]


def _byte_letters() -> list[str]:
    """GPT-2's printable letter of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]


def _gguf_rows(weight: torch.Tensor, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k, as its own conversion script has it."""
    rows, inputs = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2).reshape(rows, inputs).numpy()


@pytest.fixture
def write_gguf(tmp_path: Path, model: transformers.LlamaForCausalLM) -> Write:
    def write(**changes: str | bool) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, str(changes.get("architecture", "llama")))
        writer.add_block_count(LAYERS)
        writer.add_context_length(256)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_rope_freq_base(100_000.0)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_vocab_size(len(_tokens()))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(str(changes.get("pre", "smollm")))
        writer.add_token_list(_tokens())
        writer.add_token_types([3 if token in CONTROL else 1 for token in _tokens()])
        writer.add_token_merges(["t h", "th e", "Ġ the", "2 0"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(2)
        writer.add_add_bos_token(bool(changes.get("add_bos", False)))
        writer.add_chat_template(TEMPLATE)
        _add_tensors(writer, model)
        if "tensor" in changes:
            writer.add_tensor(str(changes["tensor"]), np.zeros(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add_tensors(writer: gguf.GGUFWriter, model: transformers.LlamaForCausalLM) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = _gguf_rows(weight, HEADS if "q_proj" in name else KV_HEADS)
        renamed = names.get_name(name, try_suffixes=(".weight",))
        if "mlp" in name:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(renamed, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(renamed, values)


def test_weights_are_those_of_the_model_rounded(
    write_gguf: Write, tmp_path: Path, model: transformers.LlamaForCausalLM
) -> None:
    convert(write_gguf(), tmp_path)
    converted = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, weight in model.state_dict().items():
        found = converted.state_dict()[name]
        if "mlp" in name:  # 8 bits a weight, in blocks with a scale of their own
            assert (found - weight).abs().max() < weight.abs().max() / 100
        else:
            assert torch.equal(found, weight.to(torch.bfloat16).float()), name


def test_configuration_is_that_of_the_model(
    write_gguf: Write, tmp_path: Path, model: transformers.LlamaForCausalLM
) -> None:
    convert(write_gguf(), tmp_path)
    converted = transformers.LlamaConfig.from_pretrained(tmp_path)
    for field in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "vocab_size",
        "max_position_embeddings",
        "tie_word_embeddings",
        "rope_parameters",
    ):
        assert getattr(converted, field) == getattr(model.config, field), field


@pytest.mark.parametrize(
    "text", ["the other", " 2026 the 20", "It's 3.5 €\n\n  the", "naïve 北京 the🙂", "tab\tand   spaces  "]
)
def test_words_are_cut_as_llama_cpp_cuts_them(write_gguf: Write, tmp_path: Path, text: str) -> None:
    convert(write_gguf(), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    words = [word for part in DIGIT.findall(text) for word in GPT2.findall(part)]
    expected = [token for word in words for token in tokenizer.encode(word)]
    ids = list(tokenizer.encode(text))
    assert ids == expected
    assert tokenizer.vocab["20"] not in ids
    assert tokenizer.decode(ids) == text
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).encode(text) == ids


def test_chat_prompt_starts_once_and_the_answer_ends_at_im_end(write_gguf: Write, tmp_path: Path) -> None:
    convert(write_gguf(), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    messages = [{"role": "user", "content": "the"}]
    ids = tokenizer.render_chat(messages)
    start = tokenizer.vocab["<|im_start|>"]
    assert [position for position, token in enumerate(ids) if token == start] == [0, len(ids) - 11]
    assert tokenizer.eos_ids == {tokenizer.vocab["<|im_end|>"]}
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert list(ids) == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gemma3"}, "general.architecture 'gemma3' is not supported"),
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre 'llama-bpe' is not supported"),
        ({"add_bos": True}, "tokenizer.ggml.add_bos_token is not supported"),
        ({"tensor": "rope_freqs.weight"}, "the tensor 'rope_freqs.weight' is not supported"),
    ],
)
def test_what_cannot_be_converted_is_named(
    write_gguf: Write, tmp_path: Path, changes: dict[str, str | bool], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(write_gguf(**changes), tmp_path)


def test_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    assert main([str(tmp_path / "x.gguf"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'x.gguf'}: not a GGUF file: ")
    assert main([]) == 2
