"""Which answers are captured, and which policies are refused. Both are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from slipstream_core.errors import ManifestError
from slipstream_core.manifest import EMBEDDED_MANIFEST, parse
from slipstream_core.manifest.speculation_policy import SpeculationPolicy
from slipstream_core.types import Endpoint, GenerationRequest
from slipstream_gateway.api.http import read_headers
from slipstream_gateway.api.request import capture_of, learn_of
from slipstream_gateway.capture.copies import is_drawn
from slipstream_gateway.request.answer_copy import MAX_ANSWER_BYTES, AnswerCopy
from slipstream_gateway.upstreams.base import Piece

PIECE_BYTES = 1024
REQUEST = GenerationRequest(endpoint=Endpoint.CHAT, model="acme")


def policy(capture: Mapping[str, Any]) -> SpeculationPolicy:
    fields = {"pair": "acme", "capture": capture}
    document = {"apiVersion": "slipstream.dev/v1alpha1", "metadata": {"name": "acme"}, "spec": fields}
    return msgspec.convert({"kind": "SpeculationPolicy", **document}, SpeculationPolicy)


def drawn(capture: Mapping[str, Any] | None, /, *, key_id: str = "", draw: float = 0.5, **request: Any) -> bool:
    return is_drawn(
        msgspec.structs.replace(REQUEST, **request),
        None if capture is None else policy(capture),
        request_class="code/long",
        key_id=key_id,
        draw=draw,
    )


@pytest.mark.parametrize(
    ("capture", "draw", "expected"),
    [
        (None, 0.0, False),
        ({}, 0.0, False),
        ({"share": 0.6}, 0.59, True),
        ({"share": 0.6}, 0.61, False),
        ({"share": 1, "classes": [{"name": "code", "share": 0.1}]}, 0.2, False),
        ({"share": 0, "classes": [{"name": "code", "share": 0.1}, {"name": "code/long", "share": 1}]}, 0.9, True),
        ({"share": 0, "classes": [{"name": "code/long", "share": 1}, {"name": "code", "share": 0.1}]}, 0.9, True),
    ],
)
def test_the_share_of_the_class_decides(capture: Mapping[str, Any] | None, draw: float, expected: bool) -> None:
    assert drawn(capture, draw=draw) is expected


def test_excluded_keys_are_never_captured() -> None:
    capture = {"share": 1, "excludeKeys": ["k-payroll"]}
    assert not drawn(capture, key_id="k-payroll", capture=True)
    assert drawn(capture, key_id="k-support")
    assert drawn(capture)


@pytest.mark.parametrize("request_fields", [{"choices": 2}, {"endpoint": Endpoint.RESPONSES}, {"capture": False}])
def test_such_requests_are_never_captured(request_fields: dict[str, Any]) -> None:
    assert not drawn({"share": 1}, **request_fields)


@pytest.mark.parametrize("values", ["deny", "deny allow", "allow deny", "allow,deny", "Deny,allow allow"])
def test_one_deny_wins_over_every_allow(values: str) -> None:
    """A proxy may add a header to the client's, or join both."""
    headers = [(b"x-slipstream-capture", value.encode()) for value in values.split()]
    headers += [(b"x-slipstream-learn", value.encode()) for value in ("off", "on")]
    read = read_headers({"headers": headers})
    assert (capture_of(read.capture), learn_of(read.learn)) == (False, False)


def test_a_copy_that_is_too_large_keeps_nothing() -> None:
    copy, piece = AnswerCopy(), Piece(b"x" * PIECE_BYTES)
    for _ in range(MAX_ANSWER_BYTES // PIECE_BYTES):
        copy.add(piece)
    assert copy.size_bytes() <= MAX_ANSWER_BYTES
    copy.add(piece)
    assert copy.size_bytes() > MAX_ANSWER_BYTES
    assert copy.pieces == []


def test_a_stream_without_end_is_not_kept_in_memory() -> None:
    copy, most = AnswerCopy(), 0
    for _ in range(4 * MAX_ANSWER_BYTES // PIECE_BYTES):
        copy.add(Piece(b"x" * PIECE_BYTES))
        most = max(most, len(copy.pieces))
    assert most * PIECE_BYTES < 2 * MAX_ANSWER_BYTES
    assert copy.size_bytes() > MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    ("capture", "message"),
    [
        ("{patterns: [{name: a, pattern: '('}]}", "spec.capture.patterns[0].pattern: must be a regular expression"),
        ("{patterns: [{name: a, pattern: 'x*'}]}", "spec.capture.patterns[0].pattern: must not match an empty text"),
        ("{patterns: [{name: a, pattern: x}, {name: a, pattern: y}]}", "spec.capture.patterns[1].name: another one"),
        ("{classes: [{name: code, share: 1}, {name: code, share: 0}]}", "spec.capture.classes[1].name: another one"),
        ("{share: 2}", "spec.capture.share"),
        ("{redact: [passport]}", "spec.capture.redact[0]"),
    ],
)
def test_a_wrong_policy_is_refused_by_its_field(capture: str, message: str) -> None:
    text = f"{EMBEDDED_MANIFEST.read_text(encoding='utf-8').rstrip()}\n  capture: {capture}\n"
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert message in str(caught.value)
