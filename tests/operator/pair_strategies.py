"""ModelPairs of every kind that is accepted, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.operator.pair_objects import pair_object

_WORDS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
_NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
_TRITON_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", fullmatch=True)
# What a manifest accepts is any printable text: also what YAML, shells and protobuf have to be careful with.
_SOURCES = st.one_of(
    _WORDS, st.just("embedded:target"), st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
).filter(lambda text: text == "embedded:target" or not text.startswith("embedded:"))
_QUANTITIES = st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?", fullmatch=True)
_RESOURCES = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"]), _QUANTITIES)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with any of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


_AFFINITY = st.just(
    {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}}
            ]
        }
    }
)
_SERVING = _some(
    image=_WORDS,
    replicas=st.none() | st.integers(0, 1000),
    gpus=st.integers(0, 1),
    resources=_some(requests=_RESOURCES, limits=_RESOURCES),
    nodeSelector=st.dictionaries(_WORDS, _WORDS, max_size=3),
    tolerations=st.lists(
        _some(
            key=_WORDS,
            operator=st.sampled_from(["Exists", "Equal"]),
            value=_WORDS,
            effect=st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
            tolerationSeconds=st.integers(0, 3600),
        ),
        max_size=3,
    ),
    affinity=st.none() | _AFFINITY,
    storage=st.builds(lambda claim: {"claim": claim, "mountPath": "/mnt"}, _WORDS),
    autoscaling=st.fixed_dictionaries(
        {"maxReplicas": st.integers(3, 1000)},
        optional={"minReplicas": st.integers(0, 3), "waitingRequests": st.integers(1, 100_000)},
    ),
    startupSeconds=st.integers(10, 86_400),
    drainSeconds=st.integers(0, 3600),
)
_DRAFTS = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["model", "hybrid"]), "source": _SOURCES},
        optional={"tokenizer": _SOURCES, "revision": _WORDS},
    ),
    st.fixed_dictionaries({"kind": st.sampled_from(["ngram", "none"])}),
)
_ENGINES = st.fixed_dictionaries(
    {"kind": st.just("slipstream")},
    optional={
        "device": st.sampled_from(["auto", "cpu", "cuda"]),
        "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
        "maxConcurrency": st.integers(1, 1024),
        "contextTokens": st.none() | st.integers(16, 16_777_216),
        "tritonModel": _TRITON_NAMES,
    },
)
_SPECS = st.fixed_dictionaries(
    {
        "model": _WORDS,
        "engine": _ENGINES,
        "target": st.fixed_dictionaries(
            {"source": _SOURCES}, optional={"tokenizer": _SOURCES, "revision": st.none() | _WORDS}
        ),
        "draft": _DRAFTS,
    },
    optional={"serving": _SERVING, "maxDraftTokens": st.integers(1, 32), "killSwitch": st.none() | st.booleans()},
)

served_pairs: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda spec, name, generation: pair_object(spec, name=name, generation=generation),
    _SPECS,
    _NAMES,
    st.integers(1, 1000),
)
"""ModelPair objects with servers of their own. Some are refused: what a spec may hold together is a rule of its own."""
