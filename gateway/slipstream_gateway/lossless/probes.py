"""The requests of a check. Pure: the seeds are passed in.

Sampling parameters are explicit, so that a server's defaults cannot change the requested distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from slipstream_core.types import Endpoint, GenerationRequest

from slipstream_gateway.lossless.score import Sampling

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


class Probe(NamedTuple):
    """One request of a check. `has_ids`: the answer should have token ids."""

    request: GenerationRequest
    has_ids: bool


def greedy_probes(model: str, *, openai_alone: bool = False) -> Iterator[Probe]:
    """`openai_alone`: without parameters beyond OpenAI's API, for servers that refuse them."""
    for prompt in PROMPTS:
        yield _probe(model, prompt, temperature=0.0, seed=None, openai_alone=openai_alone)


def sampled_probes(model: str, *, seed: int, openai_alone: bool = False) -> Iterator[Probe]:
    """Each with its own seed, from `seed` on."""
    for index, prompt in enumerate(PROMPTS * SAMPLES_PER_PROMPT):
        yield _probe(model, prompt, temperature=SAMPLING.temperature, seed=seed + index, openai_alone=openai_alone)


def _probe(model: str, prompt: str, *, temperature: float, seed: int | None, openai_alone: bool) -> Probe:
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": temperature,
    }
    if temperature > 0.0:
        body |= {"top_p": SAMPLING.top_p, "seed": seed}
        if not openai_alone:
            body |= {"top_k": -1, "repetition_penalty": 1.0}
    request = GenerationRequest(
        endpoint=Endpoint.COMPLETION,
        model=model,
        prompt=prompt,
        max_tokens=MAX_TOKENS,
        temperature=temperature,
        seed=seed,
        raw=msgspec.json.encode(body),
    )
    return Probe(request, has_ids=not openai_alone)
