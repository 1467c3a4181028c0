"""Whatever pair is accepted, its children are objects that Kubernetes takes."""

from __future__ import annotations

import copy
import re

import kubernetes_validate
from hypothesis import HealthCheck, assume, given, settings
from slipstream_core.manifest.resources import parse_resource

from tests.operator.pair_objects import JSON, children
from tests.operator.pair_strategies import served_pairs

KUBERNETES = "1.37"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=served_pairs)
def test_children_of_any_accepted_pair_are_valid(raw: JSON):
    assume(parse_resource(raw).item is not None)
    made = children(raw)
    assert made
    for child in made.values():
        kubernetes_validate.validate(child, KUBERNETES, strict=True)
        assert DNS_LABEL.fullmatch(child["metadata"]["name"])
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=served_pairs)
def test_children_are_made_of_the_pair_alone(raw: JSON):
    assume(parse_resource(raw).item is not None)
    before = copy.deepcopy(raw)
    first, second = children(raw), children(copy.deepcopy(raw))
    assert first == second
    assert raw == before


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=served_pairs)
def test_what_containers_mount_is_there_and_mounted_once(raw: JSON):
    assume(parse_resource(raw).item is not None)
    spec = children(raw)["Deployment"]["spec"]["template"]["spec"]
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        mounts = container["volumeMounts"]
        assert {mount["name"] for mount in mounts} <= set(volumes)
        paths = [mount["mountPath"] for mount in mounts]
        assert len(set(paths)) == len(paths)
