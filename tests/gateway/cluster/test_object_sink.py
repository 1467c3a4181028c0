"""How news of objects get to the assembler, also past an object that it cannot take."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from slipstream_core.kube.client import Json
from slipstream_core.kube.reflector import Change
from slipstream_gateway.sources.cluster.assemble import PAIRS, Assembler
from slipstream_gateway.sources.cluster.collection import Collection, key_of
from slipstream_gateway.sources.cluster.view import ObjectSink


class Stumbling(Assembler):
    """Has a bug that the objects in `over` bring out."""

    def __init__(self) -> None:
        super().__init__(lambda service: ())
        self.over: set[str] = set()

    def put(self, kind: str, item: Json, *, killed: bool) -> None:
        if key_of(item) in self.over:
            raise RuntimeError("a bug")
        super().put(kind, item, killed=killed)


class Feed:
    """A sink of pairs, and what came out of it."""

    def __init__(self) -> None:
        self.assembler, self.applied, self.news = Stumbling(), dict[str, int](), 0
        self.sink = ObjectSink(Collection(PAIRS), self.assembler, namespace=None, applied=self.applied, news=self._news)

    def killed(self) -> dict[str, bool]:
        self.assembler.flush()
        return {model: route.killed is not None for model, route in self.assembler.table().routes.items()}

    def _news(self) -> None:
        self.news += 1


def pair(name: str, generation: int = 1, uid: str = "0123456789", **spec: Any) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": uid, "generation": generation}
    engine = {"kind": "external", "arms": {"plain": {"protocol": "openai", "endpoints": ["http://h:1"], "model": "m"}}}
    made = {"apiVersion": "slipstream.dev/v1alpha1", "kind": PAIRS, "metadata": metadata}
    return made | {"spec": {"model": name, "engine": engine, **spec}}


def test_object_that_cannot_be_taken_over_keeps_nobody_elses_kill_from_its_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed()
    feed.sink.replaced([pair("a"), pair("b")])
    feed.assembler.over = {"team/a"}
    with caplog.at_level(logging.ERROR):
        feed.sink.changed(
            [Change(pair("a", 2, killSwitch=True), False), Change(pair("b", 2, killSwitch=True), False)],
        )
        feed.sink.changed([])
    assert feed.news == 3
    assert feed.killed() == {"a": False, "b": True}
    assert feed.applied == {"team/ModelPair/a#01234567": 1, "team/ModelPair/b#01234567": 2}
    assert [record.getMessage() for record in caplog.records] == ["ModelPair team/a cannot be applied, retrying"]


def test_object_that_could_not_be_taken_over_is_by_the_next_list_that_has_nothing_new() -> None:
    feed = Feed()
    feed.assembler.over = {"team/a"}
    listed = [pair("a", 2, killSwitch=True), pair("b")]
    feed.sink.replaced(listed)
    assert feed.killed() == {"b": False}
    feed.assembler.over = set()
    feed.sink.replaced(listed)
    assert feed.killed() == {"a": True, "b": False}
    assert feed.applied["team/ModelPair/a#01234567"] == 2


def test_object_that_is_made_again_meanwhile_leaves_no_trace_of_its_namesake() -> None:
    feed = Feed()
    feed.sink.replaced([pair("a", 7)])
    feed.assembler.over = {"team/a"}
    feed.sink.changed([Change(pair("a", 1, uid="abcdefabcdef"), False)])
    assert feed.applied == {"team/ModelPair/a#01234567": 7}
    feed.assembler.over = set()
    feed.sink.changed([])
    assert feed.applied == {"team/ModelPair/a#abcdefab": 1}
    feed.sink.replaced([])
    assert feed.applied == {}
    assert feed.killed() == {}
