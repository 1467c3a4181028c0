"""The console of gateways in a cluster: what the operator decided, and a kill switch that is the pair's own field."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from slipstream_core.manifest.status import ClassStatus, LastDecision, Phase, SpeculationPolicyStatus
from slipstream_core.settings import AdminSettings, AuditSettings, ClusterSettings, GatewaySettings, Pod

from tests.gateway.pair_manifest import chat
from tests.support.browser import chromium
from tests.support.kube_client import KubeError
from tests.support.polling import eventually

ASKED = {"x-slipstream-console": "1"}
READ = ["get", "list", "watch"]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES = [
    {"apiGroups": ["slipstream.dev"], "resources": ["modelpairs", "speculationpolicies"], "verbs": READ},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*READ, "create", "patch", "delete"]},
]
PATCH = {"apiGroups": ["slipstream.dev"], "resources": ["modelpairs"], "verbs": ["patch"]}
STATUS = SpeculationPolicyStatus(
    classes=(
        ClassStatus(name="code/long", phase=Phase.ROLLED_BACK, share=0.0, message="acceptance fell to 31 %"),
        ClassStatus(name="extraction/short", phase=Phase.PROGRESSING, share=0.25, step=1),
    ),
    decisions=(
        LastDecision(
            time="2026-03-01T10:05:00Z", rule="AcceptanceGuard", name="code/long", from_phase="Promoted",
            to_phase="RolledBack", share=0.0, metric="acceptance", observed=0.31, threshold=0.5, samples=420,
            message="acceptance fell to 31 %, below 50 %",
        ),
        LastDecision(
            time="2026-03-01T10:00:00Z", rule="Promote", name="extraction/short", from_phase="Progressing",
            to_phase="Progressing", share=0.25, samples=200, message="faster by 12 %",
        ),
    ),
)  # fmt: skip


def _grant(space: Any, name: str, *rules: dict[str, list[str]]) -> None:
    space.client.create(f"{RBAC}/namespaces/{space.name}/roles", {"metadata": {"name": name}, "rules": list(rules)})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "gateway"}],
    }
    space.client.create(f"{RBAC}/namespaces/{space.name}/rolebindings", binding)


def _settings(space: Any, tmp_path: Path, *, pod: str = "gateway-0", kill_switch: bool = True) -> GatewaySettings:
    cluster = ClusterSettings(
        kubeconfig=space.kubeconfig("gateway"),
        namespaces=(space.name,),
        report_namespace=space.name,
        pod=Pod(name=pod, uid=str(uuid.uuid4())),
    )
    return GatewaySettings(
        cluster=cluster,
        admin=AdminSettings(kill_switch=kill_switch),
        audit=AuditSettings(is_on=True, file=tmp_path / "audit.jsonl"),
    )


def _figures(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{url}/admin/events", headers={"accept": "application/json"}, timeout=15).json()
    return found


def _kill(url: str, pair: str) -> httpx.Response:
    return httpx.post(f"{url}/admin/kills/{pair}", json={"by": "Ada"}, headers=ASKED, timeout=15.0)


@pytest.fixture
def acme(space: Any, openai_server: Any) -> Any:
    """A pair with the status of an operator, and a gateway's account that may read."""
    arm = {"protocol": "openai", "endpoints": [openai_server().url], "model": "up"}
    space.pair("acme", engine={"kind": "external", "arms": {"plain": arm, "speculative": arm}})
    space.policy("acme", allowClientMode=True)
    status = {"status": msgspec.to_builtins(STATUS)}
    space.client.patch(f"{space.path('SpeculationPolicy', 'acme')}/status", status)
    _grant(space, "gateway", *RULES)
    return space


def test_the_page_shows_the_operators_decisions_and_turns_the_pairs_switch(
    acme: Any, serve: Any, tmp_path: Path
) -> None:
    first, second = (serve(_settings(acme, tmp_path, pod=pod)) for pod in ("gateway-0", "gateway-1"))
    key = f"{acme.name}/acme"
    refused = _kill(first.url, key)
    assert refused.status_code == 409
    said = refused.json()["error"]["message"]
    assert "does not let this gateway change" in said
    assert "cannot patch" in said
    assert f"Run: slipstream kill modelpair/acme -n {acme.name}" in said
    assert not _figures(first.url)["pairs"][0]["killed"]

    _grant(acme, "gateway-kills", PATCH)
    patch = acme.server.client("gateway").patch
    eventually(lambda: patch(acme.path("ModelPair", "acme"), {}), "the right is there", ignoring=KubeError)
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{first.url}/console")
        page.wait_for_selector("#history li b")
        rows = page.locator("#rollout tr").all_inner_texts()
        assert [row.split() for row in rows] == [
            ["code/long", "RolledBack", "0", "%", "acceptance", "fell", "to", "31", "%"],
            ["extraction/short", "Progressing", "25", "%"],
        ]
        newest, older = page.locator("#history li").all_inner_texts()
        assert all(part in newest for part in ("AcceptanceGuard · code/long", "Promoted → RolledBack", "below 50 %"))
        assert all(part in older for part in ("Promote · extraction/short", "25 %", "faster by 12 %"))

        page.click("#kill-open")
        page.fill("#kill-by", "Ada")
        page.fill("#kill-reason", "bad drafts")
        page.click("#kill-go")
        page.locator("#kill-landing", has_text="took effect in").wait_for()
        assert "on 2 gateways" in page.inner_text("#kill-landing")
        page.wait_for_selector("#kill-open.again")
        assert page.inner_text("#kill-state") == "Stopped by the pair's kill switch."
        page.locator("#history li:first-child", has_text="Speculation stopped by Ada").wait_for()
    assert acme.client.get(acme.path("ModelPair", "acme"))["spec"]["killSwitch"] is True
    for gateway in (first, second):
        answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat("tokens=2"), timeout=15.0)
        assert answer.headers["x-slipstream-reason"] == "kill_switch"

    allowed = httpx.request("DELETE", f"{second.url}/admin/kills/{key}", json={"by": "Bo"}, headers=ASKED, timeout=15)
    assert (allowed.json()["workers"], allowed.json()["note"]) == (2, "")
    assert 0.0 < allowed.json()["landed_s"] < 5.0
    assert "killSwitch" not in acme.client.get(acme.path("ModelPair", "acme"))["spec"]
    assert not _figures(first.url)["pairs"][0]["killed"]
    assert _turned(tmp_path / "audit.jsonl", count=2) == [("kill", "Ada"), ("unkill", "Bo")]


def _turned(audit_log: Path, *, count: int) -> list[tuple[str, str]]:
    """What the audit log says of the switch and who, as soon as that is `count` lines: it is written a moment later."""

    def turned() -> list[tuple[str, str]]:
        audit = [json.loads(line) for line in audit_log.read_text().splitlines()]
        return [
            (line["event"], line["who"]) for line in audit if line["event"] in ("kill", "unkill") and "reason" in line
        ]

    eventually(lambda: len(turned()) >= count, f"{count} changes of the switch", seen=turned)
    return turned()


def test_where_reports_may_not_be_read_it_says_that_nobody_knows(acme: Any, serve: Any, tmp_path: Path) -> None:
    acme.client.patch(
        f"{RBAC}/namespaces/{acme.name}/roles/gateway",
        {"rules": [*RULES[:2], {**RULES[2], "verbs": ["get", "create", "patch", "delete"]}, PATCH]},
    )
    answer = _kill(serve(_settings(acme, tmp_path)).url, f"{acme.name}/acme").json()
    assert (answer["landed_s"], answer["workers"]) == (None, 0)
    assert "cannot list resource" in answer["note"]


def test_without_the_option_the_page_has_the_command_for_what_stops_the_pair(
    acme: Any, serve: Any, tmp_path: Path
) -> None:
    url = serve(_settings(acme, tmp_path, kill_switch=False)).url
    (pair,) = _figures(url)["pairs"]
    assert (pair["command"], pair["switched"]) == (f"slipstream kill modelpair/acme -n {acme.name}", False)
    assert pair["command"] in _kill(url, pair["pair"]).json()["error"]["message"]
    acme.patch("SpeculationPolicy", "acme", killSwitch=True)
    eventually(lambda: _figures(url)["pairs"][0]["killed"], "the policy's kill")
    assert _figures(url)["pairs"][0]["command"] == f"slipstream kill speculationpolicy/acme -n {acme.name}"
