"""The token ids of a prompt: in the first response to the requests that ask, and nowhere else."""

from __future__ import annotations

from typing import Any

from tests.triton.test_triton_margins import GREEDY


async def test_the_first_response_has_the_tokens_of_the_prompt(triton: Any) -> None:
    whole = await triton.generate(**GREEDY, prompt_ids=True)
    first, *others = (await triton.generate(**GREEDY, prompt_ids=True, stream=True)).parts
    [part] = whole.parts
    assert len(part.prompt_ids) == part.prompt_tokens > 0
    assert first.prompt_ids == part.prompt_ids
    assert others
    assert all(other.prompt_ids is None for other in others)
    again = await triton.generate(
        **{name: value for name, value in GREEDY.items() if name not in ("text_input", "messages")},
        input_ids=part.prompt_ids,
    )
    assert again.parts[0].token_ids == part.token_ids
    assert again.parts[0].prompt_ids is None
