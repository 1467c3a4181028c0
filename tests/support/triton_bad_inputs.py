"""Inputs that break the contract of the Triton model, whatever engine is behind it, with what each answer says."""

from __future__ import annotations

from typing import Any

USER = [{"role": "user", "content": "hello"}]
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "expected exactly one of text_input, messages, input_ids, got none"),
    ({"text_input": "a", "messages": USER}, "got text_input, messages"),
    ({"text_input": b"\xff\xfe"}, "text_input is not valid UTF-8: invalid start byte at byte 0"),
    ({"messages": b"[{"}, "messages is not a JSON list"),
    ({"messages": b'{"role": "user"}'}, "messages is not a JSON list"),
    ({"messages": b"[" * 100_000}, "messages is not a JSON list"),
    ({"messages": []}, "messages is an empty list"),
    ({"messages": [{"role": "user"}]}, "messages is not a JSON list"),
    ({"messages": [{"role": "judge", "content": "a"}]}, "messages[0].role: expected one of system"),
    ({"messages": b'[{"role": "user", "content": "\\ud800"}]'}, "messages[0].content has a lone surrogate"),
    ({"input_ids": [1, -5]}, "input_ids[1]: a token id cannot be negative, got -5"),
    ({"input_ids": [2_000_000]}, "2000000"),
    ({"input_ids": []}, "input_ids holds no tokens"),
    ({"messages": USER, "resume_ids": [-1]}, "resume_ids[0]: a token id cannot be negative, got -1"),
    ({"messages": USER, "max_tokens": 0}, "max_tokens: expected 1 or more, got 0"),
    ({"messages": USER, "max_tokens": -7}, "max_tokens: expected 1 or more, got -7"),
    ({"messages": USER, "temperature": float("nan")}, "temperature: expected a finite number, got nan"),
    ({"messages": USER, "temperature": float("inf")}, "temperature: expected a finite number, got inf"),
    ({"messages": USER, "temperature": -0.5}, "temperature: expected 0 to 100, got -0.5"),
    ({"messages": USER, "top_p": 0.0}, "top_p: expected more than 0 and at most 1, got 0"),
    ({"messages": USER, "top_p": 1.5}, "top_p: expected more than 0 and at most 1, got 1.5"),
    ({"messages": USER, "top_k": -1}, "top_k: expected 0 or more, got -1"),
    ({"messages": USER, "draft_tokens": -1}, "draft_tokens: expected 0 or more, got -1"),
    ({"messages": USER, "stop": ["a", ""]}, "stop[1]: expected 1 to 1024 bytes, got 0"),
    ({"messages": USER, "stop": [b"\xc3"]}, "stop[0] is not valid UTF-8"),
    ({"messages": USER, "stop": ["x"] * 10_000}, "stop: at most 64 strings, got 10000"),
]
