"""What clients notice of a bad new revision: `python -m tests.benchmarks.canary [--share 0.04] [--seconds 60]`.

A real API server, operator, gateway, Redis and two Tritons of the embedded pair, under a closed loop of streams. First
without a new revision for `--seconds`; then a good one until it is promoted, and three bad ones until they are taken
back: slower by 0.4 s for each of its messages, one with other tokens, and one whose server is killed. Goals: no
request fails, and the clients' p95 while a bad one gets requests is at most 1.2 times the p95 without it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles

from tests.e2e.real_cluster import running_cluster
from tests.e2e.revisions import NEW_DRAFT_LENGTH, OBJECTS, Answer, Load, Rollout, dies, other_tokens, slower
from tests.e2e.test_cluster import SUMMARY, until
from tests.support.kube import CRDS, KubeApiServer, install_chart
from tests.support.kube_client import JSON
from tests.support.kubelet import TritonKubelet
from tests.support.ports import lasting_ports

Begin = Callable[[Rollout, JSON], Callable[[], None]]


def good(rollout: Rollout, beside: JSON) -> Callable[[], None]:
    rollout.new.roll_out(beside)
    return lambda: None


CASES: tuple[tuple[str, Begin], ...] = (
    ("good", good),
    ("slower", slower),
    ("other tokens", other_tokens),
    ("dies", dies),
)


def p95_s(answers: Sequence[Answer]) -> float:
    return quantiles([answer.seconds for answer in answers], n=20)[-1]


def kubelet(kube: KubeApiServer, namespace: str, folder: Path) -> TritonKubelet:
    folder.mkdir()
    grpc, http, metrics = lasting_ports(3)
    return TritonKubelet(kube, namespace, folder, {"grpc": grpc, "http": http, "metrics": metrics})


def measure(kube: KubeApiServer, folder: Path, name: str, begin: Begin, *, share: float, seconds: float) -> str:
    """One line about the revision `name`."""
    folder.mkdir()
    namespace = kube.namespace(folder.name)
    serving, new = (kubelet(kube, namespace, folder / node) for node in ("serving", "new"))
    try:
        with running_cluster(kube, namespace, folder, gateways=1) as cluster:
            rollout = Rollout(cluster, serving, new)
            rollout.begin(OBJECTS.replace("share: 0.5", f"share: {share}"))
            with Load(cluster, SUMMARY) as load:
                time.sleep(seconds)
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
    of_new = sum(bool(answer.revision) for answer in during)
    ratio = p95_s(during) / p95_s(quiet)
    return (
        f"{name:<13} {status['phase']} by {status['rule']} after {ended_s - began_s:5.1f} s, {of_new} of {len(during)} "
        f"answers of the new revision, 0 failed, p95 {p95_s(quiet):.3f} s before, {ratio:.2f} times during"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.04)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=[name for name, _ in CASES], help="one case")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as text, KubeApiServer(Path(text) / "kube") as kube:
        install_chart(kube, CRDS)
        for name, begin in CASES:
            if arguments.only in (None, name):
                folder = Path(text) / f"canary-{name.replace(' ', '-')}"
                line = measure(kube, folder, name, begin, share=arguments.share, seconds=arguments.seconds)
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
