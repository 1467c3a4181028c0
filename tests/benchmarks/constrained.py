"""Answers with a JSON schema, with drafts and without: invalid ones, different ones, tokens per step.

The embedded pair answers the prompts of its workload, half of them greedy, half sampled with a seed, each with one of
five schemas. The same prompts are answered freely, for comparison.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import jsonschema
from slipstream_engine.contract.types import Chunk, FinishReason, GenerationRequest, SamplingParams
from slipstream_engine.embedded.workload import workload
from slipstream_engine.step.engine import Engine
from slipstream_engine.text.grammar import json_grammar

from tests.benchmarks.engines import embedded_engine
from tests.benchmarks.harness import Option, Report, benchmark
from tests.engine.requests_and_answers import drain, text_of, tokens_of

_SLOTS = 24
_MAX_TOKENS = 300
_FREE_SHARE = 5


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _text(length: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


_SCHEMAS: tuple[dict[str, Any], ...] = (
    _object(
        reason={"enum": ["billing", "delivery", "technical", "account"]},
        urgent={"type": "boolean"},
        amount={"type": "integer", "minimum": 0, "maximum": 999},
    ),
    _object(name=_text(20), items={"type": "array", "items": _text(12), "maxItems": 3}),
    _object(
        order={"type": "string", "pattern": "^[0-9]{5}$"},
        status={"enum": ["open", "shipped", "delivered"]},
        customer=_object(name=_text(24), city={"type": ["string", "null"], "maxLength": 16}),
    ),
    {
        "type": "array",
        "items": _object(
            sku={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, n={"type": "integer", "minimum": 1, "maximum": 99}
        ),
        "minItems": 1,
        "maxItems": 3,
    },
    {"anyOf": [_object(ok={"const": True}, summary=_text(60)), _object(ok={"const": False})]},
)


def measure(args: argparse.Namespace, report: Report) -> None:
    engine = embedded_engine(max_draft_tokens=args.draft_tokens, max_slots=_SLOTS, max_waiting=args.answers)
    prompts = [(engine.tokenizer.render_chat(each.messages), each.max_tokens) for each in workload(11, args.answers)]
    for kind, schemas in (("schema", _SCHEMAS), ("free", (None,))):
        asked = prompts if kind == "schema" else prompts[: max(1, len(prompts) // _FREE_SHARE)]
        plain = _answers(engine, asked, schemas, 0)
        drafted = _answers(engine, asked, schemas, args.draft_tokens)
        different = sum(tokens_of(one) != tokens_of(other) for one, other in zip(plain, drafted, strict=True))
        invalid = sum(not _is_valid(each, schema) for each, schema in zip(drafted, cycle(schemas), strict=False))
        report.row(kind, answers=len(asked), invalid=invalid, different=different, tokens_per_step=_per_step(drafted))
        report.require(not invalid and not different, f"{kind}: {invalid} answers are invalid, {different} different")


def _answers(
    engine: Engine,
    prompts: Sequence[tuple[tuple[int, ...], int]],
    schemas: Sequence[dict[str, Any] | None],
    length: int,
) -> list[list[Chunk]]:
    requests = [
        GenerationRequest(
            request_id=str(number),
            prompt_ids=prompt,
            max_tokens=most if schema is None else _MAX_TOKENS,
            sampling=SamplingParams(temperature=0.8 * (number % 2), top_p=0.95, seed=number),
            draft_tokens=length,
            grammar=None if schema is None else json_grammar(schema, "schema"),
        )
        for number, ((prompt, most), schema) in enumerate(zip(prompts, cycle(schemas), strict=False))
    ]
    return [*drain(engine, requests).values()]


def _is_valid(chunks: Sequence[Chunk], schema: dict[str, Any] | None) -> bool:
    if schema is None:
        return True
    try:
        jsonschema.validate(json.loads(text_of(chunks)), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return chunks[-1].finish_reason is FinishReason.STOP


def _per_step(answers: Sequence[Sequence[Chunk]]) -> float:
    """Tokens after the first one in each step of the target."""
    counts = [chunks[-1].counts for chunks in answers]
    return sum(each.output_tokens - 1 for each in counts) / max(1, sum(each.steps for each in counts))


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        answers=Option(1000, 10, "answers with a schema"),
        draft_tokens=Option(4, 4, "draft length"),
    )
