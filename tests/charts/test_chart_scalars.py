"""Texts that a YAML parser would read as numbers, booleans, null or dates stay texts, wherever values have them.

Helm's parser follows YAML 1.1 in part, and this suite's parser differs from it. Therefore the written form counts: such
a text is in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

from tests.charts.conftest import JSON, NAMESPACE, RELEASE, with_access

Path = tuple[str | int, ...]

NEUTRAL = "zzz"
WORDS = (
    *("12345", "1000000", "0777", "0o17", "0x1f", "0b1", "1_000", "1e3", "1.5", "-1", ".inf", ".nan"),
    *("true", "no", "y", "off", "null", "~", "2026-11-28", "12:30:00"),
)
# Templates quote a text or they do not, whatever it is: one of each kind is enough where each value is tried alone.
KINDS = ("12345", "0o17", "1e3", "true", "null", "2026-11-28")
FREE_KEYS: tuple[Path, ...] = (
    ("commonLabels",),
    *(("gateway", name) for name in ("podLabels", "podAnnotations", "nodeSelector")),
    ("redis", "nodeSelector"),
    *(("gateway", kind, "annotations") for kind in ("ingress", "httpRoute", "service", "serviceAccount")),
)


def merged(under: Any, over: Any) -> Any:
    """Values as Helm merges them."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {name: merged(under.get(name), over.get(name, under.get(name))) for name in {**under, **over}}
    return over


def leaves(kind: type, values: Any, path: Path = ()) -> Iterator[Path]:
    """The path of each value of `kind`, in objects and lists."""
    if type(values) is kind:
        yield path
    elif isinstance(values, dict | list):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from leaves(kind, value, (*path, name))


def changed(values: Any, path: Path, value: Any) -> Any:
    """`values` with `value` at `path`."""
    if not path:
        return value
    name, *rest = path
    if isinstance(values, list):
        return [changed(item, tuple(rest), value) if at == name else item for at, item in enumerate(values)]
    known = values or {}
    return {**known, name: changed(known.get(name), tuple(rest), value)}


def written(chart: Chart, values: JSON, *, name: str = RELEASE, namespace: str = NAMESPACE) -> str | None:
    """The chart's YAML for `values`; None where it does not accept them."""
    try:
        chart.validate_schema(values)
        files = chart.render(values, name=name, namespace=namespace)
    except HelmError:
        return None
    return "\n---\n".join(text for path, text in sorted(files.items()) if path.endswith(".yaml"))


def bare(text: str, word: str) -> int:
    """How often `word` is a scalar without quotes."""
    if not re.search(rf"(?m)(?<![^\s\[{{,]){re.escape(word)}(?![^\s\]}},:])", text):
        return 0
    found = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        found += isinstance(event, yaml.ScalarEvent) and event.value == word and event.style is None
        found += isinstance(event, yaml.ScalarEvent) and event.value == word and event.style == ""
    return found


@pytest.fixture(scope="module")
def base(chart: Chart, everything: JSON) -> JSON:
    found: JSON = merged(chart.values, with_access(everything))
    return found


@pytest.mark.parametrize("word", KINDS)
def test_texts_of_values_stay_texts(word: str, chart: Chart, base: JSON) -> None:
    accepted, wrong = 0, list[Path]()
    for path in (*leaves(str, base), *((*path, "example.com/key") for path in FREE_KEYS)):
        text = written(chart, changed(base, path, word))
        if text is not None and bare(text, word):
            neutral = written(chart, changed(base, path, NEUTRAL))
            if neutral is not None and bare(text, word) > bare(neutral, word):
                wrong.append(path)
        accepted += text is not None
    assert not wrong
    assert accepted >= 20


@pytest.mark.parametrize("word", WORDS)
def test_keys_of_values_stay_texts(word: str, chart: Chart, base: JSON) -> None:
    before = written(chart, base)
    assert before is not None
    for path in FREE_KEYS:
        text = written(chart, changed(base, (*path, word), NEUTRAL))
        assert text is None or bare(text, word) <= bare(before, word), path


@pytest.mark.parametrize("word", [word for word in WORDS if re.fullmatch(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", word)])
def test_names_of_release_and_namespace_stay_texts(word: str, chart: Chart, base: JSON) -> None:
    before = written(chart, base)
    text = written(chart, base, name=word, namespace=word)
    assert before is not None
    assert text is not None
    assert bare(text, word) <= bare(before, word)


def test_large_numbers_stay_whole(chart: Chart, base: JSON) -> None:
    """Helm reads all numbers as floats."""
    tolerations = [{"key": "serving", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1_000_000}]
    for path, value in (
        (("gateway", "tolerations"), tolerations),
        (("operator", "tolerations"), tolerations),
        (("gateway", "autoscaling", "behavior", "scaleUp", "stabilizationWindowSeconds"), 1_000_000),
        (("gateway", "autoscaling", "extraMetrics", 0, "pods", "target", "averageValue"), 1_000_000),
        (("gateway", "resources", "limits", "memory"), 4_294_967_296),
        (("operator", "resources", "limits", "memory"), 4_294_967_296),
        (("redis", "resources", "limits", "memory"), 4_294_967_296),
        (("commonLabels", "build"), "1e+06"),
        *((path, 1_000_000) for path in leaves(int, base)),
    ):
        text = written(chart, changed(base, path, value))
        if text is not None:
            assert not re.search(r'(?<!")\b\d[.\d]*e\+\d', text), path
