"""A running gateway answers as docs/reference/openapi.json says: status, shape, headers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from tests.gateway.pair_manifest import chat, manifest_text

DOCUMENT = json.loads((Path(__file__).parents[3] / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))


def check(answer: httpx.Response, path: str) -> None:
    """The answer's status is described, its body has the shape, and its headers are told."""
    operation = DOCUMENT["paths"][path]["post" if answer.request.method == "POST" else "get"]
    described = operation["responses"][str(answer.status_code)]
    media = answer.headers["content-type"].split(";")[0]
    assert media in described["content"]
    if media == "application/json":
        schema = {**described["content"][media]["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
    told = {name for name in answer.headers if name.startswith("x-slipstream-")}
    assert told <= described.get("headers", {}).keys()


def test_answers_have_the_shapes_that_are_described(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    served = gateway(manifest_text([openai_server().url]))
    with httpx.Client(base_url=served.url, timeout=15) as client:
        for path in ("/v1/models", "/v1/evidence", "/health/live", "/health/ready", "/metrics"):
            check(client.get(path), path)
        check(client.get("/v1/models/acme"), "/v1/models/{model}")
        check(client.get("/v1/models/nobody"), "/v1/models/{model}")
        check(client.get("/metrics", headers={"accept": "application/openmetrics-text"}), "/metrics")
        check(client.post("/v1/route", json=chat("tokens=1")), "/v1/route")
        check(client.post("/v1/route", json={}), "/v1/route")
        path = "/v1/chat/completions"
        for body in (
            chat("tokens=3"),
            chat("tokens=3", stream=True),
            chat("tokens=3", n=2),
            {**chat("tokens=3"), "model": "nobody"},
            {**chat("tokens=3"), "temperature": -9},
            chat("die=0"),
            chat("status=500"),
        ):
            check(client.post(path, json=body), path)
        path = "/v1/responses"
        body = {"model": "acme", "input": "tokens=3"}
        for more in ({}, {"stream": True}, {"model": "nobody"}, {"background": True}, {"input": "status=500"}):
            check(client.post(path, json=body | more), path)
