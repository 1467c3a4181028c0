"""A gateway without keys on the loopback is for programs and pages of this machine, whatever a browser sends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from slipstream_core.settings import AccessSettings

from tests.gateway.pair_manifest import manifest_text
from tests.support.browser import chromium
from tests.support.polling import PATIENCE_S

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/route")
BODY = b'{"model": "acme", "prompt": "tokens=1"}'
JSON = {"content-type": "application/json"}
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", "")


@pytest.fixture
def url(gateway: Callable[..., Any], upstream: Any) -> str:
    return gateway(manifest_text([upstream.url])).url


def ask(url: str, *, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    """A POST with these headers and no content type of its own."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{url}{path}", content=BODY, headers=named, timeout=PATIENCE_S)


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_not_called_json_are_refused(url: str, upstream: Any, path: str) -> None:
    missing = ask(url, path=path)
    assert missing.status_code == 415
    assert missing.json()["error"] == {
        "message": "Missing header 'content-type': expected application/json.",
        "type": "invalid_request_error",
        "param": "content-type",
        "code": None,
    }
    for kind in FORMS:
        refused = ask(url, path=path, content_type=kind)
        assert refused.status_code == 415
        assert refused.json()["error"]["message"].endswith(f"expected application/json, got '{kind}'.")
    assert not upstream.requests


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_json_by_any_of_its_names_is_taken(url: str, kind: str) -> None:
    assert ask(url, content_type=kind).status_code == 200


def test_hosts_that_are_not_this_machines_are_refused(url: str, upstream: Any) -> None:
    port = url.rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "10.0.0.7",
        "[::2]",
    ):
        refused = ask(url, host=host, **JSON)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert "Invalid header 'host': without API keys, expected" in refused.json()["error"]["message"]
        assert f"got '{host}'" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/models", headers={"host": host}).status_code == 403
        assert httpx.get(f"{url}/health/ready", headers={"host": host}).status_code == 200
    assert not upstream.requests
    for host in ("localhost", f"LOCALHOST:{port}", "127.8.8.8:1", "[::1]:80", "[::ffff:127.0.0.1]"):
        assert ask(url, host=host, **JSON).status_code == 200


def test_pages_of_other_sites_are_refused(url: str, upstream: Any) -> None:
    for origin in (
        "https://evil.example",
        "http://evil.example:8080",
        "null",
        "file://",
        "http://[",
        "http://10.0.0.7",
    ):
        refused = ask(url, origin=origin, **JSON)
        assert refused.status_code == 403
        assert f"pages of other sites are refused, got '{origin}'" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/metrics", headers={"origin": origin}).status_code == 403
    assert not upstream.requests
    for origin in (url, "http://localhost:3000", "http://[::1]:3000"):
        assert ask(url, origin=origin, **JSON).status_code == 200


def test_with_keys_neither_host_nor_origin_counts(gateway: Callable[..., Any], upstream: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    served = gateway(manifest_text([upstream.url]), access=AccessSettings(keys=keys))
    asked = ask(served.url, host="models.example", origin="https://app.example", **JSON)
    assert asked.status_code == 401


def test_where_other_machines_reach_it_neither_host_nor_origin_counts(
    gateway: Callable[..., Any], upstream: Any
) -> None:
    served = gateway(manifest_text([upstream.url]), host="0.0.0.0")
    assert ask(served.url, host="models.internal", origin="https://app.example", **JSON).status_code == 200


_SEND = """async (url) => {
  const body = '{"model": "acme", "prompt": "tokens=1"}';
  const send = (options) => fetch(url, {method: "POST", body, ...options}).then(() => true, () => false);
  const bytes = new TextEncoder().encode(body);  // a body without a type: no header says what it is
  return [
    await send({mode: "no-cors"}),
    await send({mode: "no-cors", body: bytes}),
    await send({mode: "cors"}),
    await send({headers: {"content-type": "application/json"}}),
    navigator.sendBeacon(url, body),
  ];
}"""


def test_a_page_of_another_site_reaches_no_model_by_a_real_browser(
    url: str, upstream: Any, openai_server: Callable[..., Any]
) -> None:
    """Its name resolves to this machine and its port is another: for the browser that is another site."""
    elsewhere = openai_server().url.replace("127.0.0.1", "site.localhost")
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{elsewhere}/v1/models")
        sent = page.evaluate(_SEND, f"{url}/v1/completions")
        assert sent[0]  # it left the browser, and an opaque answer came
        page.wait_for_load_state("networkidle")
    assert not upstream.requests
