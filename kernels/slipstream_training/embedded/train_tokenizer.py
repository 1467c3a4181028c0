"""Trains the tokenizer that the embedded target and draft share.

    python -m slipstream_training.embedded.train_tokenizer --out DIR

It is a byte-level BPE, so any text round-trips. Every digit is a separate token, so numbers are copied digit by digit.
Both models must load the same file, because the target verifies token ids that the draft proposes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from slipstream_engine.embedded.corpus import examples
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, SYSTEM, USER, ASSISTANT, END = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role: ' + message['role']) }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(*, seed: int, vocab_size: int, sample: int) -> Tokenizer:
    """Train on the first `sample` training examples of the corpus stream `seed`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=3,
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(seed, sample), trainer)
    return tokenizer


def _texts(seed: int, sample: int) -> Iterator[str]:
    for example in itertools.islice(examples(seed), sample):
        yield from (message.content for message in example.messages)
        yield example.answer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of `token`. Raises `ValueError` if it does not exist."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return int(found)


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` in Hugging Face format."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": END,
        "clean_up_tokenization_spaces": False, "model_max_length": max_length, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the two tokenizer files")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--sample", type=int, default=12_000, help="number of corpus examples to train on")
    args = parser.parse_args()
    tokenizer = train_tokenizer(seed=args.seed, vocab_size=args.vocab_size, sample=args.sample)
    save_tokenizer(tokenizer, args.out, max_length=2048)
    print(f"{tokenizer.get_vocab_size()} tokens -> {args.out}")


if __name__ == "__main__":
    main()
