"""The commands that lead into a cluster, against a real API server; the gateway of a release runs on this machine."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from slipstream_core.manifest.sources import EMBEDDED_SOURCES
from slipstream_core.manifest.versions import ALLOW_RENAME
from slipstream_tools.cli import main

from tests.docs.shell import Shell, until
from tests.support.doc_blocks import ROOT, Block, blocks_of, pages, runs, runs_in_order
from tests.support.gateway_process import Process
from tests.support.kube import KubeApiServer
from tests.support.ports import lasting_ports

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "MinimumReplicasReady",
    "message": "1 of 1 servers is ready",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
PAIR = "/apis/slipstream.dev/v1alpha1/namespaces/{}/modelpairs/embedded"


def named(namespace: str) -> dict[str, str]:
    """Tests share a server: the release has a namespace of the test's own."""
    return {"--namespace slipstream": f"--namespace {namespace}"}


@pytest.fixture
def gateway(kube: KubeApiServer, crds: object, namespace: str, tmp_path: Path, exit_stack: ExitStack) -> Process:
    """A gateway that reports in `namespace`, once it is ready."""
    options = ("--kubeconfig", str(kube.kubeconfig(namespace=namespace)), "--report-namespace", namespace)
    namespaces = ("--namespace", namespace, "--namespace", f"{namespace}-demo")
    process = Process(None, *lasting_ports(1), *options, *namespaces, log=tmp_path / "gateway.log")
    exit_stack.callback(process.stop)
    process.wait_live("/health/ready")
    return process


@runs("README.md", "helm upgrade", "kubectl patch modelpair")
def test_readme_leads_into_a_cluster_with_redis(
    blocks: list[Block], cluster_shell: Shell, kube: KubeApiServer, namespace: str
) -> None:
    install, kill = blocks
    assert "embedded" in cluster_shell.run(install, named(namespace), folder=ROOT)
    _assert_redis_is_set(kube, namespace)
    cluster_shell.run(kill)
    assert kube.client().get(PAIR.format(namespace))["spec"]["killSwitch"] is True


@runs_in_order(
    ("docs/tutorial/cluster.md", "helm upgrade --install slipstream-crds"),
    ("docs/tutorial/cluster.md", "kubectl get pods"),
    ("docs/tutorial/cluster.md", "kubectl create namespace demo"),
    ("docs/tutorial/cluster.md", "kubectl get mp,sp"),
    (
        "docs/tutorial/cluster.md",
        'kubectl patch modelpair embedded --namespace demo --type merge --patch \'{"spec":{"killSwitch":true}}\'',
    ),
    (
        "docs/tutorial/cluster.md",
        'kubectl patch modelpair embedded --namespace demo --type merge --patch \'{"spec":{"killSwitch":null}}\'',
    ),
    ("docs/tutorial/cluster.md", "slipstream kill"),
    ("docs/howto/changes.md", "kubectl annotate modelpair embedded"),
    ("docs/howto/upgrading.md", "helm upgrade slipstream-crds"),
    ("docs/tutorial/cluster.md", "kubectl delete modelpairs"),
    ("docs/tutorial/cluster.md", "kubectl delete customresourcedefinitions"),
)
def test_guide_goes_from_an_empty_cluster_to_an_uninstall(
    blocks: list[Block], cluster_shell: Shell, gateway: Process, kube: KubeApiServer, namespace: str
) -> None:
    install, pods, pair, watch, kill, unkill, command, rename, upgrade, uninstall, kinds = blocks
    here, demo = named(namespace), {"--namespace demo": f"--namespace {namespace}-demo"}
    path = PAIR.format(f"{namespace}-demo")
    cluster_shell.run(install, here, folder=ROOT)
    _assert_redis_is_set(kube, namespace)
    assert _millicores(kube, namespace) == 850  # as the page says, so that two cores suffice
    cluster_shell.run(pods, here)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            cluster_shell.run, pair, demo | {"namespace demo": f"namespace {namespace}-demo"}, folder=ROOT
        )
        until(lambda: kube.client().exists(path) or waiting.done())
        kube.client().patch(f"{path}/status", {"status": {"conditions": [READY]}})  # as the operator does
        assert "condition met" in waiting.result()
    assert "embedded" in cluster_shell.run(watch, demo | {" --watch": ""})
    for switch, is_killed in ((kill, True), (unkill, None)):
        cluster_shell.run(switch, demo)
        assert kube.client().get(path)["spec"].get("killSwitch") is is_killed
    assert (
        cluster_shell.run(command, demo | {"report-namespace slipstream": f"report-namespace {namespace}"}).count(
            "have applied it"
        )
        == 2
    )
    cluster_shell.run(rename, demo)
    assert kube.client().get(path)["metadata"]["annotations"][ALLOW_RENAME] == "slipstream-large"
    password = _redis(kube, namespace)
    cluster_shell.run(upgrade, here, folder=ROOT)
    assert _redis(kube, namespace) == password
    cluster_shell.run(
        uninstall, here | demo | {"delete persistentvolumeclaim": "delete --wait=false persistentvolumeclaim"}
    )
    assert not kube.client().exists(path)
    # The other tests of this server need the kinds.
    cluster_shell.run(kinds, {"kubectl delete": "kubectl delete --dry-run=server"})


@runs_in_order(
    ("docs/kubernetes.md", "kubectl create secret generic slipstream-redis"),
    ("docs/howto/tenants.md", "kubectl create rolebinding"),
)
def test_preparations_for_production_are_taken(
    blocks: list[Block], cluster_shell: Shell, kube: KubeApiServer, namespace: str
) -> None:
    redis, bindings = blocks
    cluster_shell.run(redis, named(namespace))
    kube.namespace(f"{namespace}-llm")
    cluster_shell.run(bindings, named(namespace) | {"--namespace llm": f"--namespace {namespace}-llm"})


def _millicores(kube: KubeApiServer, namespace: str) -> int:
    """The processor time that the release's pods request, with those of the example."""
    requests = [
        (int(each["spec"]["replicas"]), each["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"])
        for kinds in ("deployments", "statefulsets")
        for each in kube.client().items(f"/apis/apps/v1/namespaces/{namespace}/{kinds}")
    ]
    pair = next(yaml.safe_load_all((ROOT / "deploy" / "examples" / "cluster-embedded.yaml").read_text()))
    requests.append((pair["spec"]["serving"]["replicas"], pair["spec"]["serving"]["resources"]["requests"]))
    return sum(replicas * int(asked["cpu"].removesuffix("m")) for replicas, asked in requests)


def _redis(kube: KubeApiServer, namespace: str) -> str:
    """Its password."""
    secret = kube.client().get(f"/api/v1/namespaces/{namespace}/secrets/slipstream-redis")
    return str(secret["data"]["password"])


def _assert_redis_is_set(kube: KubeApiServer, namespace: str) -> None:
    """Gateway and operator get its address from a Secret that is there: without Redis nothing is ever promoted."""
    for component in ("gateway", "operator"):
        deployment = kube.client().get(f"/apis/apps/v1/namespaces/{namespace}/deployments/slipstream-{component}")
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        [source] = [each["valueFrom"] for each in container["env"] if each["name"] == "SLIPSTREAM_REDIS_URL"]
        secret = kube.client().get(f"/api/v1/namespaces/{namespace}/secrets/{source['secretKeyRef']['name']}")
        assert secret["data"][source["secretKeyRef"]["key"]]


@runs("docs/howto/drafts.md", "apiVersion: batch/v1")
def test_a_cron_job_follows_the_traffic(
    blocks: list[Block], kube: KubeApiServer, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = yaml.safe_load(blocks[0].text)
    job["metadata"]["namespace"] = namespace
    # This API server is older than batch/v1, and has the same fields in batch/v1beta1.
    kube.client().create(f"/apis/batch/v1beta1/namespaces/{namespace}/cronjobs", job | {"apiVersion": "batch/v1beta1"})
    [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    program, *command = container["command"] + container["args"]
    assert program == "slipstream"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream_gateway.capture.store.CaptureStore.at", lambda url: url)
        patch.setattr("slipstream_tools.drafts.follow.follow", lambda store, args: print(store, args.pair, args.train))
        assert main(command) == 0
    assert capsys.readouterr().out == "s3://drafts/captures serving/support True\n"


def test_no_page_promises_that_a_name_is_downloaded() -> None:
    """A source is a folder or a checkpoint of this package; nothing fetches checkpoints from a hub."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    assert [page for page, text in texts.items() if "Hugging Face name" in text] == []
    manifests = [block.text for page in pages() for block in blocks_of(page) if block.language == "yaml"]
    sources = re.findall(r"source: *\"?([^ },\"]+)", "\n".join(manifests))
    assert sources
    strays = [source for source in sources if not source.startswith("./") and source not in EMBEDDED_SOURCES]
    assert strays == []
