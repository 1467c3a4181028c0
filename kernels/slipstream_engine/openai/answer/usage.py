"""Usage and costs of an answer: OpenAI's `usage`, and the counts of drafts as vLLM and its plugin write them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slipstream_engine.contract.types import Counts, GenerationRequest


class _DraftDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: _DraftDetails


class _Drafts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step is a pass of the target that verified drafts; `acceptance_histogram[j]` counts those that accepted j."""

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_spec_tokens: int
    acceptance_histogram: list[int]
    per_step_accepted: tuple[int, ...]
    per_step_drafted: tuple[int, ...]
    engine_seconds: float | None
    draft: str = ""


class Metrics(msgspec.Struct, frozen=True):
    speculative_decoding: _Drafts


def usage_of(requests: Sequence[GenerationRequest], counts: Sequence[Counts], choices: int) -> Usage:
    """The usage of all `requests` of a call, of which `choices` share a prompt. Tokens that an answer is resumed after
    belong to its prompt."""
    prompt = sum(len(request.prompt_ids) + len(request.resume_ids) for request in requests[::choices])
    output = sum(each.output_tokens - len(request.resume_ids) for request, each in zip(requests, counts, strict=True))
    accepted = sum(each.accepted for each in counts)
    drafted = sum(each.drafted for each in counts)
    return Usage(prompt, output, prompt + output, _DraftDetails(0, accepted, drafted - accepted))


def metrics_of(counts: Sequence[Counts], longest: int) -> Metrics:
    """The counts of all choices together; vLLM has them for one choice only. `longest` is the engine's draft length."""
    accepted = tuple(each for of_choice in counts for each in of_choice.accepted_by_step)
    drafted = tuple(each for of_choice in counts for each in of_choice.drafted_by_step)
    histogram = [0] * (longest + 1)
    for each in accepted:
        histogram[each] += 1
    times = [of_choice.engine_s for of_choice in counts if of_choice.engine_s is not None]
    drafts = {of_choice.draft for of_choice in counts}
    return Metrics(
        _Drafts(
            num_spec_steps=len(accepted),
            num_draft_tokens=sum(drafted),
            num_accepted_draft_tokens=sum(accepted),
            num_spec_tokens=longest,
            acceptance_histogram=histogram,
            per_step_accepted=accepted,
            per_step_drafted=drafted,
            engine_seconds=sum(times) if len(times) == len(counts) else None,
            draft=drafts.pop() if len(drafts) == 1 else "",
        )
    )
