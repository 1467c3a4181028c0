"""What decisions are made of in the tests of this folder: routes, requests, profiles and forecasts.

Each is one that speculates; tests change what they are about.
"""

from __future__ import annotations

from typing import Any

from slipstream_core.manifest import PairStatus, Route, compile_table, parse_documents
from slipstream_core.observation import Estimate, Forecast, Level
from slipstream_core.types import Endpoint, GenerationRequest, Message, RequestProfile, TaskType

_TRITON_ARM = {"protocol": "triton", "endpoints": ["grpc://a:1"], "model": "m"}
ONE_ANSWER_ARMS = {"plain": _TRITON_ARM, "speculative": _TRITON_ARM | {"unsupported": ["n"]}}
"""Slipstream's engine at external addresses; requests for several answers cannot speculate there."""


def route(
    *,
    pair: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    arms: dict[str, Any] | None = None,
    ready: bool = True,
) -> Route:
    """A route of Slipstream's engine, or of the external `arms`, with a policy of defaults; `policy={"pair": None}`
    leaves the policy out."""
    spec: dict[str, Any] = {"model": "m", "maxDraftTokens": 6}
    if arms is None:
        spec |= {"engine": {"kind": "slipstream"}, "target": {"source": "t"}, "draft": {"kind": "ngram"}}
    else:
        spec |= {"engine": {"kind": "external", "arms": arms}}
    head = {"apiVersion": "slipstream.dev/v1alpha1", "metadata": {"name": "p"}}
    documents = [{**head, "kind": "ModelPair", "spec": spec | (pair or {})}]
    policy_spec = {"pair": "p"} | (policy or {})
    if policy_spec["pair"] is not None:
        documents.append({**head, "kind": "SpeculationPolicy", "spec": policy_spec})
    status = {"p": PairStatus(ready=ready, message="" if ready else "loading")}
    return compile_table(parse_documents(documents, name="test"), status=status).routes["m"]


def request(**changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {
        "endpoint": Endpoint.CHAT,
        "model": "m",
        "messages": (Message(role="user", content="Summarise this call."),),
    }
    return GenerationRequest(**fields | changes)


def profile(**changes: Any) -> RequestProfile:
    """Of the class `summarization/long`."""
    fields: dict[str, Any] = {
        "task": TaskType.SUMMARIZATION,
        "expected_output_tokens": 200.0,
        "rare_token_share": 0.02,
        "structured_output": False,
        "prompt_tokens": 300,
        "confidence": 0.9,
    }
    return RequestProfile(**fields | changes)


def forecast(
    *,
    level: Level = Level.CLASS,
    doubt: float = 0.02,
    load: float = 1.0,
    neighbours_draft_length: float = 0.0,
    **means: float | None,
) -> Forecast:
    """200 tokens at β = 0.8, a step of 12 ms and 2 ms per draft token, a plain token of 10 ms; every part with a
    standard error of `doubt` times its mean. A mean of None: nothing is known of it."""
    fields: dict[str, float | None] = {
        "output_tokens": 200.0,
        "acceptance": 0.8,
        "plain_tpot_s": 0.010,
        "step_base_s": 0.012,
        "step_per_draft_token_s": 0.002,
    }
    parts: Any = {
        name: None if mean is None else Estimate(mean=mean, se=doubt * mean, samples=20.0, level=level)
        for name, mean in (fields | means).items()
    }
    return Forecast(load=load, neighbours_draft_length=neighbours_draft_length, **parts)
