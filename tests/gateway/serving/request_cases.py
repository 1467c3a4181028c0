"""Requests as clients send them, engine by engine: what each engine behind the gateway makes of one request.

`test_request_cases.py` runs the table against the embedded Triton and a scripted OpenAI-compatible server,
`tests/vllm/gateway/test_gateway_vllm_request_cases.py` against real vLLM. A case is true of whole answers and of
streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx

from tests.support.polling import PATIENCE_S
from tests.support.streams import DONE, events_of

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TALK = "Summarize the call."
CALL = "Agent: Hello, this is Clara, how can I help you?\nCustomer:"
"""The embedded pair answers the chat `TALK` and continues the text `CALL` for more than 16 tokens. A scripted server
answers three tokens."""
Body = Mapping[str, Any]


class Answer(NamedTuple):
    """An answer with status 200. `choices` has the finish reason of each choice, `sent` the body that the server got
    if the test can see it."""

    output_tokens: int
    choices: list[str | None]
    sent: Body | None


class Refused(NamedTuple):
    """Status 400 with these fields of the error; `part` is part of the message."""

    param: str | None
    code: str | None
    part: str = ""


class Taken(NamedTuple):
    """Status 200, and an answer that passes `check`."""

    check: Callable[[Answer], object] = lambda answer: True


class ServerError(NamedTuple):
    """The server's own error, unchanged: with status 400, or as an event of a stream; `part` is part of it."""

    part: str


Expected = Refused | Taken | ServerError


class Case(NamedTuple):
    """One request, and what is expected of Slipstream's engine, a scripted OpenAI-compatible server, and vLLM."""

    name: str
    path: str
    body: Body
    slipstream: Expected
    openai: Expected
    vllm: Expected


def everywhere(name: str, path: str, body: Body, expected: Expected) -> Case:
    return Case(name, path, body, expected, expected, expected)


def chat(**fields: Any) -> Body:
    return {"messages": [{"role": "user", "content": TALK}], "max_tokens": 3, "temperature": 0, **fields}


def text(**fields: Any) -> Body:
    return {"prompt": CALL, "max_tokens": 3, "temperature": 0, **fields}


def without(body: Body, *names: str) -> Body:
    return {name: value for name, value in body.items() if name not in names}


def choices(count: int) -> Taken:
    return Taken(lambda answer: len(answer.choices) == count)


def tokens(count: int) -> Taken:
    return Taken(lambda answer: answer.output_tokens == count and answer.choices == ["length"])


def sends(**fields: Any) -> Taken:
    """The server gets these values, in the same JSON type; None: it gets no such field."""
    return Taken(
        lambda answer: json.dumps([(answer.sent or {}).get(name) for name in fields]) == json.dumps([*fields.values()])
    )


LONGER_THAN_DEFAULT = Taken(lambda answer: answer.output_tokens > 16)
RESPONSES_ARE_NOT = Refused(None, "unsupported_endpoint")


def _limits() -> list[Case]:
    unlimited = without(text(), "max_tokens")
    longest = without(chat(), "max_tokens")
    return [
        Case("text without a limit", TEXT, unlimited, tokens(16), sends(max_tokens=16), tokens(16)),
        Case("text with a null limit", TEXT, text(max_tokens=None), tokens(16), sends(max_tokens=16), tokens(16)),
        Case("chat without a limit", CHAT, longest, LONGER_THAN_DEFAULT, sends(max_tokens=None), LONGER_THAN_DEFAULT),
        Case("max_tokens 3.0, text", TEXT, text(max_tokens=3.0), tokens(3), sends(max_tokens=3), tokens(3)),
        Case("max_tokens 3.0, chat", CHAT, chat(max_tokens=3.0), tokens(3), sends(max_tokens=3), tokens(3)),
        Case(
            "max_completion_tokens, text",
            TEXT,
            without(text(max_completion_tokens=3), "max_tokens"),
            tokens(3),
            sends(max_tokens=3, max_completion_tokens=None),
            tokens(3),
        ),
        Case(
            "max_output_tokens 16.0, response",
            RESPONSES,
            {"input": TALK, "max_output_tokens": 16.0},
            RESPONSES_ARE_NOT,
            sends(max_output_tokens=16),
            Taken(lambda answer: answer.output_tokens <= 16),
        ),
        everywhere("max_tokens 1.5", CHAT, chat(max_tokens=1.5), Refused("max_tokens", "invalid_type", "got 1.5")),
        everywhere(
            "max_tokens -1", TEXT, text(max_tokens=-1), Refused("max_tokens", "integer_below_min_value", "got -1")
        ),
    ]


def _bounds() -> list[Case]:
    long_stop, stops = "x" * 1025, [f"stop {number}" for number in range(65)]
    return [
        Case("n 9", CHAT, chat(n=9, temperature=1), choices(9), sends(n=9), choices(9)),
        Case(
            "n 33",
            CHAT,
            chat(n=33, max_tokens=1, temperature=1),
            choices(33),
            sends(n=33),
            choices(33),
        ),
        Case("n 2.0", CHAT, chat(n=2.0, temperature=1), choices(2), sends(n=2), choices(2)),
        Case(
            "16 prompts",
            TEXT,
            text(prompt=[CALL] * 16),
            choices(16),
            sends(prompt=[CALL] * 16),
            choices(16),
        ),
        Case(
            "4 prompts times n 2",
            TEXT,
            text(prompt=[[5, 6]] * 4, n=2, temperature=1),
            choices(8),
            sends(n=2),
            choices(8),
        ),
        Case(
            "33 prompts",
            TEXT,
            text(prompt=[CALL] * 33),
            choices(33),
            sends(prompt=[CALL] * 33),
            choices(33),
        ),
        Case("4 stop texts", CHAT, chat(stop=stops[:4]), tokens(3), sends(stop=stops[:4]), tokens(3)),
        Case(
            "5 stop texts",
            CHAT,
            chat(stop=stops[:5]),
            tokens(3),
            sends(stop=stops[:5]),
            ServerError("should have at most 4 items"),
        ),
        Case(
            "65 stop texts",
            CHAT,
            chat(stop=stops),
            tokens(3),
            sends(stop=stops),
            ServerError("should have at most 4 items"),
        ),
        Case(
            "a long stop text",
            TEXT,
            text(stop=long_stop),
            tokens(3),
            sends(stop=long_stop),
            tokens(3),
        ),
        Case("temperature 2", TEXT, text(temperature=2, seed=1), Taken(), sends(temperature=2), Taken()),
        Case(
            "temperature 3",
            TEXT,
            text(temperature=3, seed=1),
            Taken(),
            sends(temperature=3),
            ServerError("temperature must be in [0, 2]"),
        ),
        Case(
            "temperature 101",
            CHAT,
            chat(temperature=101),
            Taken(),
            sends(temperature=101),
            ServerError("temperature must be in [0, 2]"),
        ),
        everywhere(
            "temperature -1", CHAT, chat(temperature=-1), Refused("temperature", "decimal_below_min_value", "got -1")
        ),
        everywhere("top_p 1.5", TEXT, text(top_p=1.5), Refused("top_p", "decimal_above_max_value", "got 1.5")),
        everywhere("n 0", TEXT, text(n=0), Refused("n", "integer_below_min_value", "got 0")),
        Case("seed 7.0", CHAT, chat(seed=7.0), tokens(3), sends(seed=7), tokens(3)),
        Case("seed -1", CHAT, chat(seed=-1, temperature=1), Taken(), sends(seed=None), Taken()),
    ]


def _prompts() -> list[Case]:
    missing = "missing_required_parameter"
    return [
        Case(
            "an empty text",
            TEXT,
            text(prompt=""),
            Refused("prompt", "invalid_value", "expected at least one token"),
            sends(prompt=""),
            ServerError("prompt"),
        ),
        Case(
            "an unknown token id",
            TEXT,
            text(prompt=[5, 2_000_000]),
            Refused("prompt[1]", "invalid_value", "got 2000000"),
            sends(prompt=[5, 2_000_000]),
            ServerError("2000000 is out of vocabulary"),
        ),
        Case(
            "an unknown token id in the second prompt",
            TEXT,
            text(prompt=[[5], [6, 2_000_000]]),
            Refused("prompt[1][1]", "invalid_value", "got 2000000"),
            sends(prompt=[[5], [6, 2_000_000]]),
            ServerError("2000000 is out of vocabulary"),
        ),
        Case(
            "an empty text after another one",
            TEXT,
            text(prompt=[CALL, ""]),
            Refused("prompt[1]", "invalid_value", "expected at least one token"),
            sends(prompt=[CALL, ""]),
            ServerError("prompt"),
        ),
        Case("token ids as decimals", TEXT, text(prompt=[5.0, 6.0]), Taken(), sends(prompt=[5, 6]), Taken()),
        everywhere("a negative token id", TEXT, text(prompt=[5, -1]), Refused("prompt", "invalid_value", "-1")),
        everywhere("no prompts", TEXT, text(prompt=[]), Refused("prompt", "empty_array")),
        everywhere("no prompt", TEXT, without(text(), "prompt"), Refused("prompt", missing)),
        everywhere("no messages", CHAT, without(chat(), "messages"), Refused("messages", missing)),
        everywhere("an empty chat", CHAT, chat(messages=[]), Refused("messages", "empty_array")),
        everywhere("no input", RESPONSES, {}, Refused("input", missing)),
        everywhere(
            "a message without a role", CHAT, chat(messages=[{"content": "hi"}]), Refused("messages[0].role", missing)
        ),
        everywhere("messages as a text", CHAT, chat(messages="hi"), Refused("messages", "invalid_type", 'got "hi"')),
        Case(
            "a prompt beyond the context",
            TEXT,
            text(prompt=[5] * 60_000),
            Refused("prompt", "context_length_exceeded", "60000"),
            Taken(),
            ServerError("maximum context length"),
        ),
    ]


def _names() -> list[Case]:
    return [
        Case(
            "temprature",
            CHAT,
            chat(temprature=1),
            Refused("temprature", "unknown_parameter", "Did you mean 'temperature'?"),
            sends(temprature=1),
            tokens(3),
        ),
        everywhere(
            "mesages",
            CHAT,
            {**without(chat(), "messages"), "mesages": []},
            Refused("messages", "missing_required_parameter", "Is 'mesages' a misspelling of it?"),
        ),
        Case(
            "logprobs",
            CHAT,
            chat(logprobs=True),
            tokens(3),
            sends(logprobs=True),
            tokens(3),
        ),
        Case(
            "max_tokens 0 with echo",
            TEXT,
            text(max_tokens=0, echo=True),
            Refused("max_tokens", "unsupported_value", "0 is not supported"),
            sends(max_tokens=0, echo=True),
            Taken(),
        ),
        Case(
            "max_tokens 0",
            TEXT,
            text(max_tokens=0),
            Refused("max_tokens", "unsupported_value", "0 is not supported"),
            sends(max_tokens=0),
            ServerError("max_tokens"),
        ),
    ]


CASES = [*_limits(), *_bounds(), *_prompts(), *_names()]


def check(
    case: Case, expected: Expected, url: str, model: str, *, stream: bool, sent: Callable[[], Body] | None
) -> None:
    """Sends the request of `case` to the gateway at `url`, and compares the response with what is expected. `sent`
    returns the body that the server got last."""
    body = {"model": model, **case.body}
    if stream:
        body |= (
            {"stream": True} if case.path == RESPONSES else {"stream": True, "stream_options": {"include_usage": True}}
        )
    response = httpx.post(f"{url}{case.path}", json=body, timeout=PATIENCE_S)
    if isinstance(expected, Taken):
        assert response.status_code == 200, response.text
        answer = (_streamed if stream else _whole)(response, sent() if sent is not None else None)
        assert expected.check(answer), (answer, response.text[:1000])
        return
    if isinstance(expected, ServerError):
        assert response.status_code == 400 or (stream and 'data: {"error"' in response.text), response.text
        assert expected.part in response.text
        return
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (expected.param, expected.code, "invalid_request_error"), (
        error
    )
    assert expected.part in error["message"]


def _whole(response: httpx.Response, sent: Body | None) -> Answer:
    found = response.json()
    reasons = [choice["finish_reason"] for choice in found.get("choices", [])]
    usage = found["usage"]
    return Answer(usage.get("completion_tokens", usage.get("output_tokens")), reasons, sent)


def _streamed(response: httpx.Response, sent: Body | None) -> Answer:
    events = [event for event in events_of(response.text) if event != DONE]
    assert not any("error" in event and event["error"] for event in events), response.text
    reasons: dict[int, str | None] = {}
    output_tokens = 0
    for event in events:
        for choice in event.get("choices", []):
            reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
        usage = event.get("usage") or event.get("response", {}).get("usage")
        if usage:
            output_tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return Answer(output_tokens, [reasons[index] for index in sorted(reasons)], sent)
