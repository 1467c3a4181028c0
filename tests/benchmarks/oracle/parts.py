"""The parts of the decision that are taken away in turn, and how."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from slipstream_gateway.decide.estimate import by_key, class_offsets, classes, curves, outcomes
from slipstream_gateway.decide.estimate.outcomes import Pace

from tests.benchmarks.oracle.gateway import Parts


class Without(NamedTuple):
    """The decision without a part: by values of `parts`, or by `changes` of attributes of the product's code."""

    parts: Parts = Parts()
    changes: tuple[tuple[Any, str, Any], ...] = ()


_NO_MEDIANS = ((by_key, "LEAST_OTHERS", 10**9),)


def _whole_weight(*args: Any, **options: Any) -> Pace | None:
    found = outcomes.pace_of(*args, **options)
    return found and found._replace(weight=1.0)


TAKEN: Mapping[str, Without] = {
    "nothing": Without(),
    "hold-back, exploration": Without(Parts(shares=False)),
    "margin": Without(Parts(margin=False)),
    "everything learnt": Without(Parts(learns=False)),
    "classes": Without(Parts(classes=False)),
    "lengths of answers": Without(Parts(lengths=False)),
    "acceptance": Without(Parts(acceptance=False)),
    "rare answers": Without(Parts(rare=False)),
    "load": Without(Parts(curves=False)),
    "neighbours": Without(Parts(neighbours=False)),
    "uncertainty": Without(Parts(uncertainty=False)),
    "separate keys": Without(Parts(keys=False)),
    "medians of keys": Without(changes=_NO_MEDIANS),
    "nothing, 40 keys": Without(Parts(callers=40)),
    "medians, 40 keys": Without(Parts(callers=40), _NO_MEDIANS),
    "free places": Without(Parts(pressure=1.0)),
    "pair's offset": Without(changes=((class_offsets.ClassOffsets, "_learn_pair", lambda self, noise: None),)),
    "small weight of short answers": Without(changes=((classes, "pace_of", _whole_weight),)),
    "requests that differ": Without(changes=((classes, "_BETWEEN_REQUESTS", 1e-9),)),
    "detection of changes": Without(changes=((curves, "_CHANGED", math.inf),)),
    "related curves": Without(changes=((curves.Curve, "lean_on", lambda self, relative, *, ratio=1.0: None),)),
    "nearby loads": Without(changes=((curves.Curve, "_nearby", lambda self, octave: [self._prior_belief]),)),
}


@contextmanager
def changed(without: Without) -> Iterator[None]:
    """The product's code without the part."""
    with ExitStack() as stack:
        for owner, name, value in without.changes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
