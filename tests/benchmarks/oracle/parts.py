"""The parts of the decision that are taken away in turn, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from slipstream_gateway.decide.estimate import classes, curves, median_by_key, pools
from slipstream_gateway.decide.estimate.ratios import unseen

from tests.benchmarks.oracle.gateway import Parts


class Without(NamedTuple):
    """The decision without a part: by values of `parts`, or by `changes` of attributes of the product's code."""

    parts: Parts = Parts()
    changes: tuple[tuple[Any, str, Any], ...] = ()


_NO_MEDIANS = ((median_by_key, "LEAST_OTHERS", 10**9), (pools, "LEAST_OTHERS", 10**9))
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
    "class's step times": Without(
        changes=((classes.KeyModel, "paces", lambda self, subject, pool: unseen(classes._pace_prior(pool))),),
    ),
    "detection of changes": Without(changes=((curves, "has_changed", lambda memory: False),)),
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
