"""What clients notice of a bad new revision.

A real API server, operator, gateway, Redis and two Tritons of the embedded pair, under a closed loop of streams. First
without a new revision for `--seconds`. Then a good one until it is promoted, and three bad ones until they are taken
back: its processes are stopped for most of the time, it gives other tokens, or its server is killed. Goals: no request
fails, and the clients' p95 while a bad one gets requests is at most 1.2 times the p95 without it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import Option, Report, benchmark, percentile
from tests.e2e.real_cluster import running_cluster
from tests.e2e.revisions import NEW_DRAFT_LENGTH, OBJECTS, Load, Rollout, dies, other_tokens, slower
from tests.e2e.test_cluster import SUMMARY, until
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.kube_client import JSON
from tests.support.kubelet import TritonKubelet
from tests.support.ports import lasting_ports

Begin = Callable[[Rollout, JSON], Callable[[], None]]


def good(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    rollout.new.roll_out(beside)
    return lambda: None


CASES: dict[str, Begin] = {"good": good, "slower": slower, "other tokens": other_tokens, "dies": dies}


def kubelet(kube: KubeApiServer, namespace: str, folder: Path) -> TritonKubelet:
    folder.mkdir()
    grpc, http, metrics = lasting_ports(3)
    return TritonKubelet(kube, namespace, folder, {"grpc": grpc, "http": http, "metrics": metrics})


def roll_out(kube: KubeApiServer, folder: Path, name: str, begin: Begin, args: argparse.Namespace) -> dict[str, Any]:
    """The row of the revision `name`."""
    folder.mkdir()
    namespace = kube.namespace(folder.name)
    serving, new = (kubelet(kube, namespace, folder / node) for node in ("serving", "new"))
    try:
        with running_cluster(kube, namespace, folder, gateways=1) as cluster:
            rollout = Rollout(cluster, serving, new)
            rollout.begin(OBJECTS.replace("share: 0.5", f"share: {args.share}"))
            with Load(cluster, SUMMARY) as load:
                rollout.load = load
                time.sleep(args.seconds)
                quiet = list(load.answers)
                clean_up = begin(rollout, rollout.change(NEW_DRAFT_LENGTH))
                until("it gets requests", lambda: rollout.canary.get("phase") != "Starting")
                began_s = time.monotonic()
                until("its end", lambda: rollout.canary["phase"] in ("Promoted", "RolledBack"))
                ended_s = time.monotonic()
                status = rollout.canary
            clean_up()
    finally:
        for one in (serving, new):
            one.stop()
    during = [answer for answer in load.answers if began_s <= answer.ended_s <= ended_s]
    before_s, during_s = (
        percentile([answer.seconds for answer in answers], 0.95) if answers else None for answers in (quiet, during)
    )
    return {
        "end": status["phase"],
        "rule": status["rule"],
        "after_s": ended_s - began_s,
        "answers": len(during),
        "of_new_revision": sum(bool(answer.revision) for answer in during),
        "p95_before_s": before_s,
        "p95_ratio": during_s / before_s if before_s and during_s else None,
    }


def measure(args: argparse.Namespace, report: Report) -> None:
    with tempfile.TemporaryDirectory() as text, KubeApiServer(Path(text) / "kube") as kube:
        install_chart(kube, CRDS)
        for name in args.only:
            folder = Path(text) / f"canary-{name.replace(' ', '-')}"
            row = roll_out(kube, folder, name, CASES[name], args)
            report.row(name, **row)
            report.require((row["end"] == "Promoted") is (name == "good"), f"{name}: {row['end']}")


if __name__ == "__main__":
    benchmark(
        __file__,
        __doc__,
        measure,
        share=Option(0.1, 0.5, "of the requests for the new revision"),
        seconds=Option(20.0, 5.0, "before each revision"),
        only=Option(list(CASES), ["dies"], "these revisions", choices=list(CASES)),
    )
