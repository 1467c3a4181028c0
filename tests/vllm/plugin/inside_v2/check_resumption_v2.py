"""An answer that one engine began and another continues has the same tokens, wherever it was cut."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engines import MOST, REQUESTS, RESUMABLE, TOKENS, Heads, engine_of, questions, tokens_of
from slipstream_vllm.resumption import RESUME_KEY
from tokenizers.decoders import DecodeStream
from vllm import SamplingParams

ANSWERS = max(10, REQUESTS // 10)


def text_of(tokenizer: Any, prompt: list[int], answer: list[int]) -> str:
    """What a stream has sent after these tokens: the last ones may be a part of a character."""
    stream = DecodeStream(ids=prompt, skip_special_tokens=True)
    return "".join(stream.step(tokenizer, token) or "" for token in answer)


def test_another_engine_continues_an_answer_with_the_same_tokens(heads: Heads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    first, second = engine_of("draft_model-async", heads), engine_of("eagle-sync", heads, max_num_seqs=4)
    draw, wrong, tokenizer = random.Random(ANSWERS), [], first.get_tokenizer()._tokenizer
    for question in questions(first, draw, ANSWERS, RESUMABLE):
        [whole] = question.answers
        cut = draw.randint(1, max(1, len(whole) - 1))
        extra = {"slipstream_draft_length": draw.randint(0, MOST), RESUME_KEY: whole[:cut]}
        params = SamplingParams(max_tokens=TOKENS - cut, extra_args=extra, **question.kind)
        [output] = second.generate([{"prompt_token_ids": question.prompt}], params, use_tqdm=False)
        text = text_of(tokenizer, question.prompt, whole[:cut]) + output.outputs[0].text
        if tokens_of(output) != [whole[cut:]] or text != text_of(tokenizer, question.prompt, whole):
            wrong.append((question.kind, cut, tokens_of(output), whole, text))
    assert wrong == []
