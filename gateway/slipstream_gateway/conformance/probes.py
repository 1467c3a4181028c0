"""The requests of a check and their answers. Pure except for the seeds, which are passed in.

Sampling parameters are explicit, so that a server's defaults cannot change the requested distribution.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from slipstream_core.errors import Incomparable
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.request.likelihood import Sampling
from slipstream_gateway.upstreams.base import Completion, Tokens, Wire

COPYING = "Repeat the list.\n\nList: " + "alpha, beta, gamma, delta, " * 4 + "\nList: alpha, beta, gamma, delta, alpha,"
"""Nearly every draft token is accepted here with any draft; n-gram drafts find matches as well."""
PROMPTS = (
    COPYING,
    "Summarize the call in two sentences.\n\nAgent: Hello, how can I help?\nCustomer: My order arrived damaged.\n",
    'Write the contact as JSON.\n\nName: Ada Lovelace, city: London, born: 1815\n\n{"name": "',
    "def fibonacci(n):\n    ",
)
MAX_TOKENS = 48
SAMPLES_PER_PROMPT = 4
SAMPLING = Sampling()
_UNREADABLE = "unreadable"
_BEYOND_OPENAI = frozenset({"return_token_ids", "top_k", "repetition_penalty"})


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer to one probe. Token ids and margins (see `Tokens`) are empty if the server does not return
    them. `drafted` is 0 if it does not count drafts. `counted`: it reported the usage and, where its API has them, the
    drafts."""

    text: str
    prompt_token_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    drafted: int = 0
    counted: bool = True
    margins: tuple[float, ...] = ()


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(_Body).decode


def greedy_requests(model: str) -> Iterator[GenerationRequest]:
    for prompt in PROMPTS:
        yield _request(model, prompt, temperature=0.0, seed=None)


def sampled_requests(model: str, *, seed: int) -> Iterator[GenerationRequest]:
    """Each with its own seed, from `seed` on."""
    for index, prompt in enumerate(PROMPTS * SAMPLES_PER_PROMPT):
        yield _request(model, prompt, temperature=SAMPLING.temperature, seed=seed + index)


def openai_alone(request: GenerationRequest) -> GenerationRequest:
    """`request` without parameters beyond OpenAI's API, for servers that refuse them."""
    body = {name: value for name, value in msgspec.json.decode(request.raw).items() if name not in _BEYOND_OPENAI}
    return msgspec.structs.replace(request, features=frozenset(), raw=msgspec.json.encode(body))


def read_answer(completion: Completion) -> ProbeAnswer:
    """Raises `Incomparable` if the answer does not have the requested form."""
    drafted = completion.usage.drafted
    if len(completion.pieces) == 1 and isinstance(piece := completion.pieces[0], Tokens):
        return ProbeAnswer(text=piece.text, token_ids=piece.token_ids, drafted=drafted, margins=piece.margins)
    data = b"".join(piece.data for piece in completion.pieces if isinstance(piece, Wire))
    try:
        choices = _decode(data).choices
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Incomparable(_UNREADABLE) from None
    if len(choices) != 1:
        raise Incomparable(_UNREADABLE)
    return ProbeAnswer(
        text=choices[0].text,
        prompt_token_ids=choices[0].prompt_token_ids or (),
        token_ids=choices[0].token_ids or (),
        drafted=drafted,
        counted=completion.usage.exact and completion.usage.counted,
    )


def _request(model: str, prompt: str, *, temperature: float, seed: int | None) -> GenerationRequest:
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": temperature,
        "return_token_ids": True,
    }
    if temperature > 0.0:
        body |= {"top_p": SAMPLING.top_p, "top_k": -1, "repetition_penalty": 1.0, "seed": seed}
    return GenerationRequest(
        endpoint=Endpoint.COMPLETION,
        model=model,
        prompt=prompt,
        max_tokens=MAX_TOKENS,
        temperature=temperature,
        seed=seed,
        features=frozenset({"return_token_ids"}),
        raw=msgspec.json.encode(body),
    )
