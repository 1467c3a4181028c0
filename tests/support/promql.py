"""What an expression of PromQL asks for, by a real parser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import promql_parser

# Prometheus and its service discovery add these to every series that they scrape.
ADDED = {"pod", "instance", "job"}
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")


class Matcher(NamedTuple):
    """A label of a series that is asked for, with the values that are written out."""

    label: str
    values: tuple[str, ...]


class Selector(NamedTuple):
    """A series that is asked for."""

    name: str
    matchers: tuple[Matcher, ...]


class Asked(NamedTuple):
    """All that one expression asks for: series, and labels to group or match by."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def asked(expression: str) -> Asked:
    """Raises `ValueError` where the expression is not PromQL. Grafana's variables count as any value."""
    found: list[Selector] = []
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(_selector(node))
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
            grouped.update(modifier.labels)
        if isinstance(node, promql_parser.BinaryExpr) and modifier is not None and modifier.matching is not None:
            grouped.update(modifier.matching.labels)

    promql_parser.walk(promql_parser.parse(expression.replace("$__rate_interval", "5m")), visit)
    return Asked(tuple(found), frozenset(grouped))


def faults(expression: str, series: Mapping[str, set[str]], values: Mapping[str, set[str]]) -> Iterator[str]:
    """What `expression` asks for that there is not. `series` has the labels of each; `values` those of closed sets."""
    wanted = asked(expression)
    known: set[str] = set(ADDED)
    for selector in wanted.selectors:
        if selector.name not in series:
            yield f"no metric is called {selector.name}"
            continue
        labels = series[selector.name] | ADDED
        known |= labels
        for matcher in selector.matchers:
            if matcher.label not in labels:
                yield f"{selector.name} has no label {matcher.label}"
            for value in matcher.values:
                if value not in values.get(matcher.label, {value}):
                    yield f"{matcher.label} of {selector.name} is never {value}"
    yield from (f"nothing here has a label {label}" for label in sorted(wanted.grouped - known))


def _selector(node: Any) -> Selector:
    matchers = [Matcher(found.name, _values(found.value)) for found in node.matchers.matchers]
    return Selector(node.name, tuple(matchers))


def _values(text: str) -> tuple[str, ...]:
    """The alternatives of a pattern as they are written here: nothing but texts with bars between them."""
    return () if _VARIABLE.search(text) or not text else tuple(text.split("|"))
